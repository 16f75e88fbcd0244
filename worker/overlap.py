"""Whether it pays that gradients enter the ring during backward: found out by trying it. Pure.

First the share of a step that is spent waiting for the ring is watched. If that is worth a trial, steps with and
without overlap take turns in blocks that all workers begin at the same step, since they know its number; so what each
of them measures is the whole ring with and without. Each decides for itself, and again when the world has changed.
"""

from __future__ import annotations

import statistics
from typing import Literal

BLOCK = 8
"""Steps of a block; the first of them is not counted."""
BLOCKS = 4
WATCH = 16
"""Steps watched before a trial."""
WORTH = 0.1
"""Share of a step spent waiting for the ring that is worth a trial."""
GAIN = 0.03
"""Share of a step that overlap must save."""
AGAIN = 2000
"""Steps after which a decision is looked at again."""


class Overlap:
    """Decides step by step.

    Args:
        when: `on` and `off` are told, `auto` is found out.

    Attributes:
        said: what was decided last, in words; empty while nothing was.
    """

    def __init__(self, when: str) -> None:
        self.when = when
        self.said = ""
        self._world = -1
        self._phase: Literal["watch", "trial", "decided"] = "watch"
        self._on = False
        self._since = 0
        self._first = 0
        self._waited: list[float] = []
        self._took: dict[bool, list[float]] = {True: [], False: []}

    def wanted(self, step: int) -> bool:
        """True if this step shall overlap, if it can."""
        if self.when != "auto":
            return self.when == "on"
        if self._phase == "trial":
            return step >= self._first and (step - self._first) // BLOCK % 2 == 0
        return self._phase == "decided" and self._on

    @property
    def listening(self) -> bool:
        """True if it must be known how gradients come."""
        return self.when == "on" or self._phase == "trial" or (self._phase == "decided" and self._on)

    def completed(self, step: int, seconds: float, waited: float, world: int) -> None:
        """Take in a step.

        Args:
            step: its number.
            seconds: from the completion of the step before to its own.
            waited: of these, after the last own slot was computed.
            world: number of the world in which it was completed.
        """
        if self.when != "auto" or seconds <= 0:
            return
        if world != self._world:
            self._world = world
            self._restart()
            return
        if self._phase == "watch":
            self._watch(step, waited / seconds)
        elif self._phase == "trial":
            self._try(step, seconds)
        elif step - self._since >= AGAIN:
            self._restart()

    def _restart(self) -> None:
        self._phase = "watch"
        self._on = False
        self._waited.clear()

    def _watch(self, step: int, share: float) -> None:
        self._waited.append(share)
        if len(self._waited) < WATCH:
            return
        if statistics.median(self._waited) < WORTH:
            del self._waited[0]
            return
        self._phase = "trial"
        self._first = ((step + BLOCK) // (2 * BLOCK) + 1) * 2 * BLOCK  # time to learn how gradients come
        self._took = {True: [], False: []}

    def _try(self, step: int, seconds: float) -> None:
        at = step - self._first
        if at < 0:
            return
        if at % BLOCK and at < BLOCKS * BLOCK:
            self._took[at // BLOCK % 2 == 0].append(seconds)
        if at < BLOCKS * BLOCK - 1:
            return
        if not self._took[True] or not self._took[False]:
            self._restart()
            return
        with_it, without = statistics.median(self._took[True]), statistics.median(self._took[False])
        self._on = with_it < (1 - GAIN) * without
        self._phase, self._since = "decided", step
        self.said = (
            f"gradients {'enter' if self._on else 'do not enter'} the ring during backward: "
            f"a step takes {1e3 * with_it:.1f} ms so, {1e3 * without:.1f} ms otherwise"
        )
