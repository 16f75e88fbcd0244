"""Copies of the state on their way from the main thread to learners.

`CopyWanted` waits in `Exchange.copies` until the main thread is at its step; the main thread answers with a `StateCopy`
of the bytes that are wanted, one for all that wait for the same step.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection

from .parts import span


@dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class StateCopy:
    """A copy of the tracked state at the beginning of `step`, or of a part of it.

    Attributes:
        step: the next step to run on it.
        chain: result chain before that step.
        layout: encoded layout (worker.state).
        memory: bytes `[first, first + len(memory))` of the flat state.
        ledger: records not known to be stored (`Pending.export`).
        first: where `memory` begins in the flat state.
        size: bytes of the whole flat state; -1: `memory` is all of it.
    """

    step: int
    chain: int
    layout: bytes
    memory: memoryview
    ledger: bytes
    first: int = 0
    size: int = -1

    @property
    def total(self) -> int:
        """Bytes of the whole flat state."""
        return len(self.memory) if self.size < 0 else self.size

    def holds(self, part: int, parts: int) -> bool:
        """True if that part of the state lies in `memory`."""
        first, end = span(self.total, part, parts)
        return self.first <= first and end <= self.first + len(self.memory)

    def view(self, part: int, parts: int) -> memoryview:
        """The bytes of a part that it `holds`."""
        first, end = span(self.total, part, parts)
        return self.memory[first - self.first : end - self.first]


@dataclasses.dataclass(slots=True, eq=False)
class CopyWanted:
    """A learner's request, waiting for the main thread.

    Attributes:
        at_least: the step of the copy.
        exact: only this step will do, no later one.
        part, parts: which bytes: part number `part` of `parts` equal ones.
        begun: the copy is being made.
        done: the copy.
        failed: why there will be none.
    """

    at_least: int
    exact: bool = False
    part: int = 0
    parts: int = 1
    begun: bool = False
    done: StateCopy | None = None
    failed: str = ""

    def due(self, step: int) -> bool:
        """True if the state before `step` is what is asked for, and nobody copies it yet."""
        return not self.begun and (step == self.at_least if self.exact else step >= self.at_least)

    def fits(self, copy: StateCopy) -> bool:
        """True if the copy answers it."""
        at = copy.step == self.at_least if self.exact else copy.step >= self.at_least
        return at and copy.holds(self.part, self.parts)


class Copies:
    """What learners wait for.

    Args:
        cv: guards everything here; those who ask wait for it.

    Attributes:
        wanted: requests that are not answered yet.
    """

    def __init__(self, cv: threading.Condition) -> None:
        self._cv = cv
        self.wanted: list[CopyWanted] = []

    def ask(self, wanted: CopyWanted) -> None:
        """A learner asks for a copy."""
        with self._cv:
            self.wanted.append(wanted)
            self._cv.notify_all()

    def withdraw(self, wanted: CopyWanted) -> None:
        """Nobody waits for it any more."""
        with self._cv:
            self.wanted = [c for c in self.wanted if c is not wanted]

    def due(self, step: int) -> bool:
        """True if the state before `step` is to be copied for somebody."""
        return any(c.due(step) for c in self.wanted)

    def begin(self, step: int) -> list[CopyWanted]:
        """A copy of the state before `step` is being made; returns whose."""
        with self._cv:
            due = [wanted for wanted in self.wanted if wanted.due(step)]
            for wanted in due:
                wanted.begun = True
            return due

    def answer(self, copy: StateCopy | None, failed: str = "") -> None:
        """Answer all learners that can use this copy; None: those whose copy was begun get none, and why."""
        with self._cv:
            for wanted in self.wanted:
                if copy is None:
                    wanted.failed = failed if wanted.begun and wanted.done is None else ""
                elif wanted.done is None and wanted.fits(copy):
                    wanted.done = copy
            self.wanted = [c for c in self.wanted if c.done is None and not c.failed]
            self._cv.notify_all()


def cover(wanted: Collection[CopyWanted], size: int) -> tuple[int, int]:
    """Return the smallest run of bytes `[first, end)` in which all parts that are wanted lie; all of it if none is."""
    if not wanted:
        return 0, size
    spans = [span(size, w.part, w.parts) for w in wanted]
    return min(first for first, _ in spans), max(end for _, end in spans)
