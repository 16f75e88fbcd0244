"""Who is kept at the door for a while: nodes that come and go, and nodes whose workers fail again and again.

    damper = came(damper, at)               the node is there again
    damper = failed(damper, at, text)       a worker of it failed
    door(dampers, at)                       who is kept out at this moment, until when, and why

Every coming costs a world change and a transfer of state, every failure the step in flight. A node that costs too much
is kept out, for longer each time it does it again; nobody who is in is put out. All of it is folded from the log with
the log's own times (seconds since the epoch by the broker's clock), so every service comes to the same, also one that
was started just now.

*Flaps.* A node may come back three times; from then on each coming holds it down, for 5 s, 10 s, 20 s and so on, one
minute at most. A minute in which it does not come back takes one flap off (the idea of RFC 2439, route flap damping).

*Failures.* A node of which three workers failed within ten minutes is in quarantine: for a minute, then two, four and
so on, an hour at most; an hour of peace takes one off. That holds only while no other node does half as badly (then it
is the script's fault, and `outcome` looks at that), and what was done to a worker from outside does not count. The only
node of a job is never in quarantine: there is no other to tell the node's fault from the script's, and none to go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["flapping", "failing"]

FREE_FLAPS = 3
"""Comings again that cost nothing: a rolling restart is no fault."""
HOLD = 5.0
"""Seconds of the first hold-down, doubled each time."""
LONGEST_HOLD = 60.0
QUIET = 60.0
"""Seconds without coming back that take one flap off."""
SAME_FLAP = 2.0
"""Seconds within which workers of one node that come back after an eviction are one flap."""

FAILURES = 3
"""Failures of a node's workers that put it in quarantine."""
WINDOW = 600.0
"""Seconds in which they count."""
OTHERS_SHARE = 0.5
"""If another node has more than this share of its failures, the fault is not the node's."""
QUARANTINE = 60.0
"""Seconds of the first quarantine, doubled each time."""
LONGEST_QUARANTINE = 3600.0
PEACE = 3600.0
"""Seconds after the end of a quarantine that take one off."""

SLACK = 5.0
"""Seconds by which the broker's clock, as services know it, may be behind what it stored."""

FROM_OUTSIDE = frozenset({"signal 1", "signal 2", "signal 9", "signal 15"})
"""Ends that somebody else brought about; they say nothing against the script or the node."""


@dataclasses.dataclass(frozen=True, slots=True)
class Damper:
    """What one node has cost so far.

    Attributes:
        comings: how often it came back in this run.
        flaps: those that still count.
        flapped_at: when it came back last.
        held_until: end of its hold-down.
        failures: (when, what) of its workers' failures that still may count.
        failed: how many there were in all.
        quarantines: those that still count.
        quarantined_until: end of the newest one.
        why: what it is or was in quarantine for.
    """

    comings: int = 0
    flaps: int = 0
    flapped_at: float = 0.0
    held_until: float = 0.0
    failures: tuple[tuple[float, str], ...] = ()
    failed: int = 0
    quarantines: int = 0
    quarantined_until: float = 0.0
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """One node is kept out.

    Attributes:
        kind: what for.
        until: end of it, in the log's time.
        seconds: how long it was to last when it began.
        count: comings, or failures.
        reason: in words.
    """

    kind: Kind
    until: float
    seconds: float
    count: int
    reason: str


def came(damper: Damper, at: float) -> Damper:
    """The node is there again: its agent is new, or its workers are back after an eviction."""
    flaps = max(0, damper.flaps - int((at - damper.flapped_at) // QUIET)) + 1
    hold = hold_of(flaps)
    return dataclasses.replace(
        damper,
        comings=damper.comings + 1,
        flaps=flaps,
        flapped_at=at,
        held_until=max(damper.held_until, at + hold) if hold else damper.held_until,
    )


def returned(damper: Damper, at: float) -> Damper:
    """One of its workers is back after an eviction; those that come together are one flap."""
    return damper if damper.comings and at - damper.flapped_at < SAME_FLAP else came(damper, at)


def hold_of(flaps: int) -> float:
    """Seconds of hold-down after so many flaps."""
    if flaps <= FREE_FLAPS:
        return 0.0
    return min(LONGEST_HOLD, HOLD * 2.0 ** min(flaps - FREE_FLAPS - 1, 32))


def failed(
    dampers: Mapping[str, Damper], node: str, at: float, text: str, *, alone: bool = False
) -> Mapping[str, Damper]:
    """A worker of the node failed; returns all dampers, since it is measured by what the other nodes do.

    Args:
        dampers: node -> its damper.
        node: whose worker it was.
        at: when, in the log's time.
        text: how it ended, in words.
        alone: there is no other node now.
    """
    if text in FROM_OUTSIDE or not node:
        return dampers
    damper = dampers.get(node, Damper())
    if at < damper.quarantined_until:  # at the door already: it had no chance to do better
        return {**dampers, node: dataclasses.replace(damper, failed=damper.failed + 1)}
    kept = tuple(f for f in damper.failures if at - f[0] < WINDOW)
    damper = dataclasses.replace(damper, failures=(*kept, (at, text)), failed=damper.failed + 1)
    others = max((_recent(d, at) for name, d in dampers.items() if name != node), default=0)
    if not alone and len(damper.failures) >= FAILURES and others <= OTHERS_SHARE * len(damper.failures):
        damper = _quarantined(damper, at, text)
    return {**dampers, node: damper}


def _recent(damper: Damper, at: float) -> int:
    return sum(at - when < WINDOW for when, _ in damper.failures)


def _quarantined(damper: Damper, at: float, text: str) -> Damper:
    served = max(0.0, at - damper.quarantined_until) if damper.quarantines else 0.0
    number = max(0, damper.quarantines - int(served // PEACE)) + 1
    seconds = quarantine_of(number)
    span = _span(at - damper.failures[0][0])
    return dataclasses.replace(
        damper,
        failures=(),  # counted; it begins anew afterwards
        quarantines=number,
        quarantined_until=at + seconds,
        why=f"{len(damper.failures)} of its workers failed within {span}, the last: {text}",
    )


def quarantine_of(number: int) -> float:
    """Seconds of the quarantine of that number."""
    return min(LONGEST_QUARANTINE, QUARANTINE * 2.0 ** min(number - 1, 32)) if number else 0.0


def kept(damper: Damper, at: float) -> Kept | None:
    """Return why the node is kept out at a moment of the log's time, None if it is not; the longer of the two.

    At a moment before it began it is not kept out: somebody has set the broker's clock back, and nobody shall wait for
    it to catch up.
    """
    found = []
    if damper.flapped_at - SLACK <= at < damper.held_until:
        seconds = damper.held_until - damper.flapped_at
        reason = f"it came back {damper.comings} times, the last time too soon: held down for {seconds:g} s"
        found.append(Kept("flapping", damper.held_until, seconds, damper.comings, reason))
    seconds = quarantine_of(damper.quarantines)
    if damper.quarantined_until - seconds - SLACK <= at < damper.quarantined_until:
        reason = f"in quarantine for {seconds:g} s: {damper.why}"
        found.append(Kept("failing", damper.quarantined_until, seconds, damper.failed, reason))
    return max(found, key=lambda k: k.until, default=None)


def door(dampers: Mapping[str, Damper], at: float) -> dict[str, Kept]:
    """Nodes that are kept out at a moment of the log's time, each with the reason."""
    found = ((node, kept(damper, at)) for node, damper in dampers.items())
    return {node: why for node, why in found if why is not None}


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
