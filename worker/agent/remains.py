"""What dead workers left behind: found, killed, and waited for before a successor starts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from reknit.core.context import WORKER

from . import procfs
from .kin import Kin

_PATIENCE = 5.0
_PAUSE = 0.005


class Remains:
    """Ends the descendants of workers that have ended; the guard, their new parent, reaps them."""

    def __init__(self) -> None:
        self._kin = Kin(_marked)
        self._sweeps: dict[str, asyncio.Task[set[int]]] = {}

    def observe(self, workers: Mapping[str, int], guard: int) -> None:
        """Note who descends from the living workers (id -> pid)."""
        self._kin.observe(procfs.table(), workers, guard)

    def begin(self, worker: str, pid: int, others: Mapping[str, int], guard: int) -> None:
        """Kill what a worker left behind, and go on until nothing is left."""
        self._kill(worker, pid, others, guard)
        self._sweeps[worker] = asyncio.get_running_loop().create_task(self._sweep(worker, pid, others, guard))

    async def gone(self, worker: str) -> set[int]:
        """Wait until nothing of the worker's last process is left; return what did not end in 5 s."""
        sweep = self._sweeps.get(worker)
        return await asyncio.shield(sweep) if sweep is not None else set()

    async def _sweep(self, worker: str, pid: int, others: Mapping[str, int], guard: int) -> set[int]:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _PATIENCE
        # one clean look is not enough: a process forked during the look is in none
        clean = 0
        while clean < 2:
            left = self._kill(worker, pid, others, guard)
            if loop.time() > give_up:
                return left
            clean = 0 if left else clean + 1
            await asyncio.sleep(_PAUSE)
        return set()

    def _kill(self, worker: str, pid: int, others: Mapping[str, int], guard: int) -> set[int]:
        left = self._kin.of(procfs.table(), worker, pid, others, guard)
        for one in left:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        return left


def _marked(pid: int) -> str:
    """Return the worker id in the environment that a process was executed with; empty if there is none."""
    value = procfs.environment_of(pid, WORKER)
    try:
        return str(msgspec.json.decode(value)["worker"]) if value else ""
    except (msgspec.MsgspecError, KeyError, TypeError):
        return ""
