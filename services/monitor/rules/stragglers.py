"""A straggler: by its own compute time a slot. Step times tell nothing, the ring makes them all equal."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

RAISE_AT = 2.0
CLEAR_AT = 1.5
"""Times the median of the others."""
HOLD = 10.0
RELEASE = 5.0
LEAST_SECONDS = 0.002
"""Differences below this, a slot, are noise."""


def straggler(view: View, now: float) -> Iterable[Finding] | None:
    """A worker computes much slower than the others."""
    if view.status.finished is not None:
        return ()
    if view.deaf(now) or view.since_listening(now) < HOLD:
        return None
    seconds = {p.worker: p.compute_seconds for p in view.fresh(now) if p.slots > 0 and p.compute_seconds > 0}
    ordered = sorted(seconds.values())
    if len(ordered) < 2:
        return []
    return [f for worker in seconds if (f := _compared(view, worker, seconds[worker], ordered)) is not None]


def _compared(view: View, worker: str, own: float, ordered: list[float]) -> Finding | None:
    usual = median_without(ordered, own)
    limit = CLEAR_AT if ("straggler", worker) in view.raised else RAISE_AT
    if own <= limit * usual or own - usual < LEAST_SECONDS:
        return None
    node = view.status.workers[worker].node
    reason = (
        f"{worker} on {node} computes a slot in {own * 1e3:.0f} ms, the others in {usual * 1e3:.0f} ms "
        f"({own / usual:.1f} times as long)"
    )
    hint = f"see what else runs on {node}; the plan gives it fewer slots meanwhile"
    return Finding("straggler", worker, "warning", reason, hint, HOLD, RELEASE)


def median_without(ordered: list[float], value: float) -> float:
    """Return the median of sorted values, at least two, less one that equals `value`."""
    at, left = bisect.bisect_left(ordered, value), len(ordered) - 1

    def nth(i: int) -> float:
        return ordered[i if i < at else i + 1]

    return (nth((left - 1) // 2) + nth(left // 2)) / 2


RULES = (Rule(("straggler",), straggler),)
