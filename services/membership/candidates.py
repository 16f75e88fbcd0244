"""Who may come in: workers that have registered and are in no world.

While a ring runs and somebody in it has the state, a newcomer is a *candidate*: it learns beside the ring, from members
of the newest world, and says `worker.caught_up`; only then a world takes it in, so nobody ever waits for it. Without
such a ring (the run begins, the world is paused, everybody or all state was lost) there is nothing to learn from: all
that have registered count, and learn in the ring.

Whoever's node is kept out (`damping`) waits, unless the run cannot go on without it: rather with it than not at all.
"""

from __future__ import annotations

from collections.abc import Collection

from .damping import Kept, door
from .hearing import is_silent, spoke_since
from .view import Record, Sight, Worker

JOIN_WINDOW = 0.1
"""Seconds that a joiner waits for others, so that several come in with one world."""
JOIN_PATIENCE = 1.0
"""... and for others that still learn."""
QUIET_AFTER_WORLD = 0.3
"""Seconds after a world change in which joiners wait longer."""


def outside(record: Record) -> tuple[Worker, ...]:
    """Workers that wait to be let in, in order of arrival: none that is on its way out, nobody when the run ends."""
    if record.completed() or record.stop is not None:
        return ()
    return tuple(w for w in record.waiting() if not record.is_leaving(w.member("active")))


def joiners(record: Record, sight: Sight, gone: Collection[str], now: float) -> tuple[Worker, ...]:
    """Workers that the next world takes in, in order of arrival.

    While a ring runs: those that have caught up, are not kept out and not under suspicion; a silent one would hold up
    the ring as soon as it is in.
    """
    workers = outside(record)
    if not record.teaches(gone):
        return workers
    shut = kept_out(record, sight, now)
    return tuple(w for w in workers if w.current and w.node not in shut and not is_suspect(record, sight, w, now))


def kept_out(record: Record, sight: Sight, now: float) -> dict[str, Kept]:
    """Nodes whose new workers are not let in now, each with the reason."""
    return door(record.dampers, now + sight.ahead)


def at_the_door(record: Record, sight: Sight, now: float) -> dict[str, Kept]:
    """The same, only nodes that have workers waiting."""
    waiting = {w.node for w in outside(record)}
    return {node: why for node, why in kept_out(record, sight, now).items() if node in waiting}


def welcome(record: Record, sight: Sight, now: float) -> tuple[Worker, ...]:
    """Workers outside whose nodes are not kept out, in order of arrival."""
    shut = kept_out(record, sight, now)
    return tuple(w for w in outside(record) if w.node not in shut)


def learning(record: Record, gone: Collection[str]) -> tuple[Worker, ...]:
    """Candidates that have not caught up yet, in order of arrival."""
    return tuple(w for w in outside(record) if not w.current) if record.teaches(gone) else ()


def joins_due(sight: Sight, now: float, *, others: bool) -> bool:
    """True if the joiners that wait have waited long enough for others.

    Args:
        sight: what this process sees.
        now: own monotonic seconds.
        others: somebody else still learns.
    """
    since = sight.joins_since
    window = JOIN_PATIENCE if others else JOIN_WINDOW
    return since is not None and now >= max(since + window, sight.world_at + QUIET_AFTER_WORLD)


def is_suspect(record: Record, sight: Sight, worker: Worker, now: float) -> bool:
    """True if there is anything at all against a worker that is in no ring; for a member that would not be enough."""

    def taken_back(what: str) -> bool:
        at = sight.noticed.get((what, worker.worker))
        return at is None or spoke_since(record, sight, worker.worker, at)

    return (
        worker.worker in sight.disconnected
        or is_silent(sight, worker.worker, now)
        or (bool(worker.frozen) and not taken_back("frozen"))
        or (bool(worker.unreachable) and not taken_back("unreachable"))
    )
