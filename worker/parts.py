"""Which bytes of the state each teacher sends, at which step, and who teaches whom: pure, the same for all.

A learner asks k teachers for one part each of the state at the beginning of exactly one step n. They are at different
steps, some milliseconds apart, so n lies a little ahead of the newest step that any of them has told (`meet`).
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Sequence
from typing import TypeVar

from reknit.core.layout import ALIGNMENT

AT_MOST = 4
"""Teachers of one learner."""
AHEAD = 0.05
"""Seconds that a question, its answer and a thread that gets its turn may take: how far ahead n lies at first."""
_FARTHEST = 64.0
"""Seconds: the margin does not grow beyond this, so a step that is late once does not put n at the end of the run."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """Where a teacher is.

    Attributes:
        step: step that its weights are ready for.
        seconds: time that a step takes, as far as it knows: not less.
        moving: False while steps do not go on: the run is at its end, or waits for members.
        planned: newest step that another learner has asked it for and that is still to come, -1 if there is none.
    """

    step: int
    seconds: float
    moving: bool
    planned: int = -1


def span(size: int, part: int, parts: int) -> tuple[int, int]:
    """Return the bytes `[first, end)` of part number `part` of a state of `size` bytes.

    Cuts are at multiples of 64 bytes, parts differ by at most 64 bytes, and together they are the whole state.
    """
    lines = -(-size // ALIGNMENT)
    return min(size, part * lines // parts * ALIGNMENT), min(size, (part + 1) * lines // parts * ALIGNMENT)


def meet(places: Sequence[Where], at_least: int, refusals: int, stalls: int = 0) -> tuple[int, list[int]]:
    """Choose the step n and the teachers (by number) that are asked for it.

    Args:
        places: where the teachers are; not empty.
        at_least: n must not be before this step.
        refusals: how often n has come too late already: each time the margin is doubled.
        stalls: how often n was not reached: then there is no margin, and at the second time nobody counts as moving.
    """
    newest = max(at_least, *(place.step for place in places))
    moving = [number for number, place in enumerate(places) if place.moving and stalls < 2]
    if not moving:
        # nothing moves: only who is at the newest step already can copy it
        return newest, [n for n, place in enumerate(places) if place.step == newest] or list(range(len(places)))
    planned = max(place.planned for place in places)
    if planned >= newest and refusals == stalls == 0:
        return planned, moving  # one copy serves both learners
    quickest = max(1e-6, min(places[number].seconds for number in moving))
    ahead = min(_FARTHEST, AHEAD * 2**refusals)
    near = stalls > 0 or (refusals == 0 and quickest >= 2 * AHEAD)
    return newest + (0 if near else math.ceil(ahead / quickest)), moving


def spread(members: Sequence[T], worker: str, turn: int = 0) -> list[T]:
    """Order members so that workers of different names begin with different ones; `turn` moves one further."""
    if not members:
        return []
    first = (zlib.crc32(worker.encode()) + turn) % len(members)
    return [*members[first:], *members[:first]]
