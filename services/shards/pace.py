"""How fast each worker computes a slot, and when another split is worth it.

Measured is a worker's own compute time a slot, never the step time: the ring makes all step times equal. A new split
must promise more than 10 % in several checks in a row; each change makes the next one wait longer, so a worker that
grows faster because it was given less does not make the plan swing.
"""

from __future__ import annotations

import dataclasses
import heapq
import statistics
from collections.abc import Mapping, Sequence

from reknit.core.events import Range, WorkerPulse
from reknit.core.plan import split

from .currency import Key

SMOOTHING = 0.2
"""Weight of one heartbeat (4 a second) in the moving mean: it forgets in about a second."""
CHECK_SECONDS = 5.0
LEAST_GAIN = 0.10
"""Part of the predicted step time that a new split must save."""
LEAST_SECONDS = 0.001
"""And the least saving in seconds: below it the measured times are noise."""
PATIENCE = 3
MOST_PATIENCE = 24
STRAGGLES = 1.5
"""A worker this many times slower than the median of the others is named."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """What is known of the workers' speed; made by heartbeats, so empty after a replay.

    Attributes:
        seconds: smoothed own compute seconds a slot.
        promising: checks in a row that promised enough.
        patience: how many of them are needed now.
        checked_at: monotonic seconds of the last check.
    """

    seconds: Mapping[Key, float] = dataclasses.field(default_factory=dict)
    promising: int = 0
    patience: int = PATIENCE
    checked_at: float = float("-inf")

    def observe(self, pulse: WorkerPulse) -> Pace:
        """Take in one heartbeat; one without slots or without a finished slot says nothing."""
        if pulse.slots < 1 or pulse.compute_seconds <= 0:
            return self
        key = (pulse.worker, pulse.incarnation)
        before = self.seconds.get(key, pulse.compute_seconds)
        mean = before + SMOOTHING * (pulse.compute_seconds - before)
        return dataclasses.replace(self, seconds={**self.seconds, key: mean})

    def keep(self, keys: frozenset[Key]) -> Pace:
        """Forget all others and begin to count checks anew (another world)."""
        kept = {key: value for key, value in self.seconds.items() if key in keys}
        return dataclasses.replace(self, seconds=kept, promising=0)

    def check(self, gain: float | None, now: float) -> Pace:
        """Note what a check promised (part of the step time, None: not known)."""
        promising = self.promising + 1 if gain is not None and gain > LEAST_GAIN else 0
        calm = self.patience - 1 if promising == 0 else self.patience
        return dataclasses.replace(self, promising=promising, patience=max(PATIENCE, calm), checked_at=now)

    def changed(self) -> Pace:
        """Note that the plan was changed for speed: the next change needs twice the patience."""
        return dataclasses.replace(self, promising=0, patience=min(MOST_PATIENCE, 2 * self.patience))


def shares(slots: int, seconds: Sequence[float]) -> tuple[int, ...]:
    """Return how many slots each worker gets so that the slowest is done soonest; each gets one if there are enough.

    Slot by slot to the worker that would be done first with one more: the optimum for equal slots. Ties go to the
    earlier worker.
    """
    counts = [1 if slots >= len(seconds) else 0] * len(seconds)
    done = [((count + 1) * took, i) for i, (count, took) in enumerate(zip(counts, seconds, strict=True))]
    heapq.heapify(done)
    for _ in range(slots - sum(counts)):
        i = done[0][1]
        counts[i] += 1
        heapq.heapreplace(done, ((counts[i] + 1) * seconds[i], i))
    return tuple(counts)


def by_speed(slots: int, workers: Sequence[str], seconds: Sequence[float | None]) -> tuple[Range, ...]:
    """Split by measured speed; a worker not measured counts as the median of the others; none measured: evenly."""
    known = [s for s in seconds if s]
    if not known:
        return split(slots, workers)
    usual = statistics.median(known)
    return split(slots, workers, shares(slots, [s or usual for s in seconds]))


def predicted(ranges: Sequence[Range], seconds: Mapping[str, float]) -> float | None:
    """Return the compute seconds of a step under these ranges; None if somebody with slots was not measured yet."""
    times = [(r.end - r.first) * seconds.get(r.worker, 0.0) for r in ranges if r.end > r.first]
    return max(times) if times and min(times) > 0 else None


def gain_of(now: Sequence[Range], then: Sequence[Range], seconds: Mapping[str, float]) -> float | None:
    """Return which part of the step time another split saves; None if it is not known, 0 if it is only noise."""
    before, after = predicted(now, seconds), predicted(then, seconds)
    if before is None or after is None:
        return None
    return (before - after) / before if before - after >= LEAST_SECONDS else 0.0


def describe(now: Sequence[Range], then: Sequence[Range], seconds: Mapping[str, float]) -> str:
    """Say in words why the split changes: the slowest worker against the others, and what is won."""
    before, after = predicted(now, seconds) or 0.0, predicted(then, seconds) or 0.0
    won = f"a step's compute time goes from {before * 1e3:.0f} to {after * 1e3:.0f} ms"
    slowest = max(seconds, key=lambda w: (seconds[w], w))
    others = [s for w, s in seconds.items() if w != slowest]
    usual = statistics.median(others) if others else 0.0
    if not others or seconds[slowest] < STRAGGLES * usual:
        return f"the workers' measured speed: {won}"
    had, gets = _count(now, slowest), _count(then, slowest)
    return (
        f"{slowest} computes a slot in {seconds[slowest] * 1e3:.0f} ms, the others in {usual * 1e3:.0f} ms: "
        f"{gets} of {then[-1].end} slots instead of {had}; {won}"
    )


def _count(ranges: Sequence[Range], worker: str) -> int:
    return sum(r.end - r.first for r in ranges if r.worker == worker)
