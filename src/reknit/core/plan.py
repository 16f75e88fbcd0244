"""Who computes which slots: contiguous ranges along the ring.

Pure; used by the shards service and, when that is away, by the ring.
"""

from __future__ import annotations

from collections.abc import Sequence

from reknit.core.errors import UsageError
from reknit.core.events import Range


def split(slots: int, workers: Sequence[str], weights: Sequence[float] | None = None) -> tuple[Range, ...]:
    """Split [0, slots) into contiguous ranges, in the order given, sizes as near to the weights as whole slots allow.

    A worker may get an empty range only when there are more workers than slots (then the last ones get none) or its
    weight is 0. Largest-remainder rounding; ties go to the earlier worker, so the result depends on nothing else.

    Raises:
        UsageError: no workers, or weights of another length or all zero.
    """
    if not workers:
        raise UsageError("a plan needs at least one worker")
    share = list(weights) if weights is not None else [1.0] * len(workers)
    total = sum(share)
    if len(share) != len(workers) or min(share) < 0 or total <= 0:
        raise UsageError(f"weights {share} do not fit {len(workers)} workers")
    ideal = [slots * s / total for s in share]
    enough = slots >= sum(s > 0 for s in share)
    least = [1 if enough and s > 0 else 0 for s in share]
    counts = [max(int(x), m) for x, m in zip(ideal, least, strict=True)]
    order = sorted(range(len(workers)), key=lambda i: (counts[i] - ideal[i], i))
    while sum(counts) < slots:
        for i in order:
            if sum(counts) < slots and share[i] > 0:
                counts[i] += 1
    while sum(counts) > slots:
        more = [j for j in range(len(counts)) if counts[j] > least[j]]
        i = max(more, key=lambda j: (counts[j] - ideal[j], j))
        counts[i] -= 1
    ranges, first = [], 0
    for worker, count in zip(workers, counts, strict=True):
        ranges.append(Range(worker=worker, first=first, end=first + count))
        first += count
    return tuple(ranges)


def covers(ranges: Sequence[Range], slots: int) -> bool:
    """True if the ranges are contiguous in the order given and cover [0, slots)."""
    at = 0
    for r in ranges:
        if r.first != at or r.end < r.first:
            return False
        at = r.end
    return at == slots
