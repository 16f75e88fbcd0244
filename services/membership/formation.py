"""When a ring may begin, who is in it, whether it may run, and how many workers each node shall keep.

A ring begins when all expected workers are there, or when the minimum of nodes is there and `last_call` has passed.
That holds for the first world of a run and again whenever nobody is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from reknit.core.events import JobSubmitted, Member

from . import hosts, topology
from .ring_order import first_order, next_order
from .topology import natural
from .view import Record, Sight, Worker


def nodes_of(members: Collection[Member] | Collection[Worker]) -> frozenset[str]:
    """Distinct nodes of members or workers."""
    return frozenset(m.node for m in members)


def enough(record: Record, members: Collection[Member] | Collection[Worker]) -> bool:
    """True if the minimum of nodes is there with at least one worker each."""
    return record.spec is not None and len(members) > 0 and len(nodes_of(members)) >= record.spec.min_nodes


def booting(record: Record) -> bool:
    """True if the processes that were started would be enough once they have registered."""
    in_already = {w.life for w in record.workers.values()}
    coming = [
        s for s in record.started.values() if record.ending(s) is None and (s.worker, s.incarnation) not in in_already
    ]
    nodes = {s.node for s in coming} | {w.node for w in record.workers.values() if w.life not in record.endings}
    return record.spec is not None and bool(coming) and len(nodes) >= record.spec.min_nodes


def is_complete(record: Record, workers: Collection[Worker]) -> bool:
    """True if all workers that are expected have registered: nobody is waited for."""
    spec = record.spec
    if spec is None or not workers:
        return False
    if record.world is not None and record.world.status == "paused" and record.began:
        # Everybody was lost: those nodes that are still there send their workers again, no others are due.
        there = [node for node in record.nodes.values() if not node.left]
        return len(workers) >= sum(node.nproc for node in there) > 0 or len(workers) >= record.most_active
    refused = {worker for worker, _ in record.refusals} - {w.worker for w in workers}
    return len(workers) + len(refused) >= record.most_active + spec.spares


def may_begin(record: Record, sight: Sight, workers: Collection[Worker], now: float) -> bool:
    """True if a ring may begin with these workers now."""
    if not enough(record, workers) or record.spec is None:
        return False
    since = sight.ready_since
    return is_complete(record, workers) or (since is not None and now - since >= record.spec.last_call)


def members_without(record: Record, gone: Collection[str], *, joiners: Sequence[Worker]) -> tuple[Member, ...]:
    """Members of the next world in ring order."""
    stay = [m for m in record.members if m.worker not in gone]
    if not stay:
        return first_order(joiners, record.most_active, topology.of(record))
    current = {w.worker for w in record.workers.values() if w.current}
    return next_order(record.members, gone, joiners, record.most_active, current, topology=topology.of(record))


def status_of(record: Record, members: Collection[Member]) -> tuple[Literal["running", "paused"], str]:
    """Status of a world of these members, and what is awaited if it is paused."""
    spec = record.spec
    if spec is None or enough(record, members) or (record.completed() and members):
        return "running", ""
    return "paused", awaiting(spec, members)


def awaiting(spec: JobSubmitted, members: Collection[Member]) -> str:
    """Say what is missing."""
    have = sorted(nodes_of(members), key=natural)
    if not have:
        return "a worker" if spec.min_nodes == 1 else f"{spec.min_nodes} nodes with a worker each"
    missing = max(spec.min_nodes - len(have), 1)
    there = f"{', '.join(have)} {'is' if len(have) == 1 else 'are'} there"
    return f"{missing} more node{'s' if missing > 1 else ''} with a worker (at least {spec.min_nodes}; {there})"


def targets(record: Record) -> dict[str, int]:
    """Node -> workers its agent shall keep; empty if neither a scaling nor a list of hosts says so.

    A job that was scaled is spread evenly over its nodes, within the room that a list of hosts gives them; else each
    listed node has the number of its host. From the record alone: two services must not disagree about it, else they
    would contradict each other for ever.
    """
    if record.spec is None or (record.scaled is None and not record.hosts):
        return {}
    rooms = hosts.room(record)
    if not rooms:
        return {}
    if record.scaled is None:
        return {node: count for node, count in rooms.items() if count is not None}
    return hosts.spread(record.scaled + record.spec.spares, rooms)
