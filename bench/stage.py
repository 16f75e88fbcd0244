"""A running job, as the plot of a history sees it: who takes part, and what can be done to it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from job import NAME, Job, Log, wait_for

from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.events import Event, JobScaled, Member, StepsCommitted, TargetsSet, WorldChanged
from reknit.core.home import Mark

E = TypeVar("E", bound=Event)
WITHIN = 120.0
"""Seconds that anything may take."""


class DidNotHappen(Exception):
    """The history did not contain its event."""


@dataclass
class Stage:
    """A running job, as a history's plot sees it."""

    bus: BusThread
    log: Log
    happened: list[str]
    job: Job
    _asked: int = 0

    @property
    def world(self) -> WorldChanged:
        """The newest world."""
        return self.log.of(WorldChanged)[-1]

    def trains(self, workers: int) -> WorldChanged:
        """Wait until so many workers are in the world, none of them learning, and steps were committed by them."""

        def look() -> WorldChanged | None:
            world = self.log.of(WorldChanged)[-1] if self.log.of(WorldChanged) else None
            if world is None or world.status != "running" or len(world.members) != workers:
                return None
            committed = self.log.of(StepsCommitted)
            owners = {r.worker for r in committed[-1].ranges if r.end > r.first} if committed else set()
            return world if owners == {m.worker for m in world.members} else None

        return wait_for(f"{workers} workers at work", look, WITHIN)

    def kill(self, member: Member) -> None:
        """SIGKILL a worker."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)

    def kill_part(self, name: str) -> int:
        """SIGKILL the broker, a service or the agent; returns its pid."""
        mark = wait_for(name, lambda: self._part(name), WITHIN)
        os.kill(mark.pid, signal.SIGKILL)
        wait_for(f"the end of {name}", lambda: not mark.alive, WITHIN)
        self.happened.append(f"{name} killed")
        return mark.pid

    def _part(self, name: str) -> Mark | None:
        return next((mark for mark in self.job.processes() if mark.what == name and mark.alive), None)

    def at_event(self, kind: type[E], suits: Callable[[E], bool], then: Callable[[], None]) -> threading.Event:
        """Do something the moment that an event that suits is heard, once; returns what says that it was done."""
        done = threading.Event()

        def hear(received: Received) -> None:
            if isinstance(received.event, kind) and not done.is_set() and suits(received.event):
                then()
                done.set()

        self.log.on_event(hear)
        return done

    def ask_for(self, workers: int) -> None:
        """Ask for another number of workers.

        The number that was asked for last is nothing new to the job, also when a worker was drained since: then one
        less is asked for first, which is no less than there are.
        """
        if workers == self._asked:
            said = len(self.log.of(TargetsSet))
            self.bus.publish(NAME, JobScaled(workers=workers - 1))
            wait_for("the targets of one less", lambda: len(self.log.of(TargetsSet)) > said, WITHIN)
        self._asked = workers
        self.bus.publish(NAME, JobScaled(workers=workers))

    def scale(self, workers: int) -> None:
        """Ask for another number of workers and wait until they are at work."""
        self.ask_for(workers)
        self.trains(workers)
        self.happened.append(f"scaled to {workers}")
