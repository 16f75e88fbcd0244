"""A worker process with its streams, from its birth until the last of its output was taken."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from .deathwatch import Deathwatch
from .display import Display
from .forkserver import Hand
from .output import Log, Output
from .tracebacks import Seen


@dataclass(slots=True)
class Running:
    """A worker process with its streams.

    Attributes:
        hand: the process.
        incarnation: of the worker.
        out, err: what it writes.
        log: where that is kept.
        watch: notices its death before it is reaped.
        step: that it was heard to be at last, -1 before.
        oom_kills, machine_oom_kills: counters of the kernel when it was born.
        ended: it was reaped.
    """

    hand: Hand
    incarnation: int
    out: Output
    err: Output
    log: Log
    watch: Deathwatch
    step: int = -1
    oom_kills: int = 0
    machine_oom_kills: int = 0
    ended: bool = False

    @classmethod
    def adopt(
        cls,
        worker: str,
        hand: Hand,
        watch: Deathwatch,
        incarnation: int,
        *,
        log_dir: str,
        display: Display,
        seen: Seen,
    ) -> Running:
        """Take over a process that was just forked."""
        file = Log(log_dir, worker)
        file.write(f"--- {worker}, incarnation {incarnation}, pid {hand.pid} ---\n".encode())
        return cls(
            hand=hand,
            incarnation=incarnation,
            out=Output(hand.stdout.fileno(), worker, file, display, error=False, seen=seen),
            err=Output(hand.stderr.fileno(), worker, file, display, error=True, seen=seen),
            log=file,
            watch=watch,
        )

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.hand.pid, number)

    def kill(self) -> None:
        """Kill it and what it has started."""
        with suppress(ProcessLookupError):
            # its group is its own: made by setsid before the script's first line
            os.killpg(self.hand.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)

    def finish(self) -> None:
        """Take what is left in its pipes."""
        for stream in (self.out, self.err):
            stream.finish()

    def close(self) -> None:
        """Take what is left in its pipes and free all that is held of it."""
        self.finish()
        self.hand.stdout.close()
        self.hand.stderr.close()
        self.log.close()
        self.hand.process.close()
