"""reknit as a system under measurement."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hosts import Hosts
from job import NAME, Job, wait_for
from offspring import Offspring
from processes import Processes
from shock import Shock
from steplog import mended_at

from reknit.core.bus import Received
from reknit.core.events import (
    AgentLeft,
    DrainAsked,
    RingBroken,
    RingLinked,
    WorkerDying,
    WorkerExited,
    WorkerStuck,
    WorkerUnreachable,
    WorldChanged,
)

BY_NODE = ("kill-node", "silent-host", "drain")
"""Events that befall a node; one worker a node then."""
SHOCKS_A_WORKER = 3
"""Kills of one place, one after the other, are followed by restarts without a pause, after 0.5 and after 1 s; a fresh
run begins then, so that the pauses of a place that fails again and again are not what is measured."""
GONE_WITHIN = 60.0


class Reknit(Processes):
    """`reknit run`; where whole nodes are hit, one of them a node over `reknit up`."""

    within = 60.0

    def __init__(self, offspring: Offspring, folder: Path, event: str, workers: int) -> None:
        super().__init__(offspring, folder)
        self.event = event
        by_node = event in BY_NODE
        self.shocks_a_run = 0 if by_node else SHOCKS_A_WORKER * workers
        self._frozen: set[int] = set()
        self._hosts = Hosts(offspring, folder) if event == "silent-host" else None
        self.job = Job(
            offspring,
            folder,
            "steps_reknit.py",
            [str(self.steps)],
            workers=1 if by_node else workers,
            nodes=workers if by_node else 1,
            flags=["--max-restarts", "1000000"],
            hosts=self._hosts,
        )

    def start(self) -> None:
        """Start all workers."""
        self.job.start()

    def victims(self) -> dict[str, set[int]]:
        """Workers, or nodes."""
        return {node: self.on_node(node) for node in self.job.nodes} if self.event in BY_NODE else self.workers()

    def strike(self, victim: str) -> float:
        """Let the event happen."""
        if self.event == "kill-worker":
            return self.signal(victim, signal.SIGKILL)
        if self.event == "freeze":
            self._frozen = self.workers()[victim]
            return self.signal(victim, signal.SIGSTOP)
        if self.event == "silent-host":
            assert self._hosts is not None
            return self._hosts.silence(self.job.host_of[victim])
        if self.event == "drain":
            with self.job.connected() as bus:
                at = time.time()
                bus.publish(NAME, DrainAsked(target=victim, reason="benchmark"))
            return at
        return self.job.kill_node(victim)

    def recovered_at(self, _before: set[int], survivors: set[int], at: float) -> float | None:
        """When the last survivor had completed a step in a newer world."""
        return mended_at(self.reader.look(), survivors, at)

    def restore(self, victim: str) -> None:
        """Wake who is frozen; start another node for one that is gone. A killed worker is replaced by its agent."""
        if self.event == "freeze":
            for pid in self._frozen:
                with contextlib.suppress(ProcessLookupError):  # its agent may have replaced it
                    os.kill(pid, signal.SIGCONT)
        if self.event not in BY_NODE:
            return
        if self.event == "drain":
            wait_for("the drained node's end", lambda: self.job.launchers[victim].poll() is not None, GONE_WITHIN)
        if self.event == "silent-host":
            assert self._hosts is not None
            self.job.kill_node(victim)
            self._hosts.hear(self.job.host_of[victim])
        self.job.replace_node(victim)

    def stages(self, shocks: list[Shock]) -> list[Shock]:
        """Add when the first evidence, the new world and its links were there."""
        if not shocks:
            return shocks
        with self.job.listening() as (_bus, log):
            return [replace(shock, stages=stages(log.received, shock.at)) for shock in shocks]

    def stop(self) -> None:
        """End all."""
        self.job.stop()
        if self._hosts is not None:
            self.offspring.end()
            self._hosts.close()


def stages(log: Sequence[Received], at: float) -> dict[str, float]:
    """Return the seconds from an event to what the job's log says of it; stages that it does not have are left out."""
    found: dict[str, float] = {}
    for received in (r for r in log if r.time > at):
        event, seconds = received.event, round(received.time - at, 4)
        match event:
            case RingBroken() | WorkerDying() | WorkerExited() | WorkerUnreachable() | WorkerStuck() | AgentLeft():
                found.setdefault("evidence", seconds)
            case WorldChanged() if event.removed and "world" not in found:
                found["world"], generation = seconds, event.generation
            case RingLinked() if "world" in found and event.generation == generation:
                found["linked"] = max(seconds, found.get("linked", 0.0))
            case _:
                pass
    return found
