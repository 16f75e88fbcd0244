"""The log, folded: `read(record, event, seq)` returns the record with one more event in it.

Only what is on the log comes in here, in the log's order, so every reader of the log holds the same record; times are
the log's own. Events of
another run, of a life that is over or of a past generation leave it unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    CheckpointRestored,
    DrainAsked,
    Event,
    HostsListed,
    JobFinished,
    JobInexact,
    JobScaled,
    JobStopAsked,
    JobSubmitted,
    NodeHeld,
    RingBroken,
    RingRecovered,
    StepsCommitted,
    TargetsSet,
    WorldChanged,
)

from . import damping, hosts, lives
from .damping import Damper
from .evidence import observe
from .life import end, put
from .linkage import Linkage
from .view import Ending, Life, Node, Record

LOST = "its agent is gone and none of its processes lives"
"""Reason of a `node.left` that membership says for an agent that cannot."""


def read(record: Record, event: Event, seq: int, at: float = 0.0) -> Record:
    """Return the record after one event of the job's log; the same object if the event changes nothing.

    Args:
        record: what the log says so far.
        event: the next one.
        seq: its place in the stream.
        at: when it was stored, seconds since the epoch by the broker's clock.
    """
    fold = _FOLDS.get(type(event))
    if fold is None:
        return record
    now = dataclasses.replace(record, clock=max(record.clock, at))
    after = fold(now, event, seq)
    return record if after is now else after


# ------------------------------------------------------------------------------------------------------------ job


def _submitted(record: Record, event: JobSubmitted, _seq: int) -> Record:
    if record.open or event.run == record.run:
        return record
    # Members of an earlier run are forgotten; the generation goes on, it is the fencing token of all runs.
    return Record(
        spec=event,
        generation=record.generation,
        world_seq=record.world_seq,
        targets_seq=record.targets_seq,
        clock=record.clock,
    )


def _scaled(record: Record, event: JobScaled, _seq: int) -> Record:
    return dataclasses.replace(record, scaled=max(0, event.workers)) if record.open else record


def _listed(record: Record, event: HostsListed, _seq: int) -> Record:
    if not record.open or event.run != record.run:
        return record
    return dataclasses.replace(record, hosts=event.hosts, nodes=hosts.place(record.nodes, event.hosts))


def _drain(record: Record, event: DrainAsked, _seq: int) -> Record:
    if not record.open:
        return record
    node = record.nodes.get(event.target)
    if node is not None:
        draining = dataclasses.replace(node, draining=True)
        return dataclasses.replace(record, nodes=put(record.nodes, node.node, draining))
    return dataclasses.replace(record, drains=record.drains | {event.target})


def _stop(record: Record, event: JobStopAsked, _seq: int) -> Record:
    if not record.open or (record.stop is not None and not event.at_once):
        return record
    return dataclasses.replace(record, stop=event)


def _inexact(record: Record, event: JobInexact, _seq: int) -> Record:
    told = record.inexact_told | {(event.worker, event.incarnation)}
    return dataclasses.replace(record, inexact_told=told) if event.run == record.run else record


def _over(record: Record, event: JobFinished, _seq: int) -> Record:
    return dataclasses.replace(record, over=event) if record.open and event.run == record.run else record


# ----------------------------------------------------------------------------------------------------------- node


def _node_joined(record: Record, event: AgentJoined, seq: int) -> Record:
    if event.run != record.run:
        return record
    node = Node(event.node, event.nproc, event.client_id, seq, event.host, event.labels, event.gossip)
    dampers = record.dampers
    if event.node in record.nodes:
        damper = damping.came(dampers.get(event.node, Damper()), record.clock)
        dampers = put(dampers, event.node, damper)
    if record.hosts:
        node = hosts.place({node.node: node}, record.hosts)[node.node]
    started = {name: s for name, s in record.started.items() if s.node != event.node}  # a new agent starts anew
    return dataclasses.replace(record, nodes=put(record.nodes, event.node, node), started=started, dampers=dampers)


def _held(record: Record, event: NodeHeld, _seq: int) -> Record:
    told = put(record.kept_told, (event.node, event.cause), event.until)
    return dataclasses.replace(record, kept_told=told) if event.run == record.run else record


def _node_left(record: Record, event: AgentLeft, _seq: int) -> Record:
    node = record.nodes.get(event.node)
    if node is not None and 0 < event.joined < node.seq:
        return record  # late news of an agent before this one
    lives: list[tuple[Life, str]] = [(w.life, w.node) for w in record.workers.values()]
    lives += [((s.worker, s.incarnation), s.node) for s in record.started.values()]
    going = [life for life, where in lives if where == event.node and life not in record.endings]
    if event.arrival and ((going and not event.swept) or node is None or node.seq != event.arrival):
        return record  # said by somebody else, who did not know yet that it is there again
    if node is not None:
        left = dataclasses.replace(node, left=True, lost=event.reason == LOST)
        record = dataclasses.replace(record, nodes=put(record.nodes, event.node, left))
    detail = f"agent of {event.node} left" + (f": {event.reason}" if event.reason else "")
    for life in going:
        ending = Ending("left", observe("leave", life[0], event.node, detail), event.node)
        if event.swept and record.stop is None:
            killed = f"{event.reason}, and its guard kills what is left of node {event.node}"
            ending = Ending("died", observe("dying", life[0], f"guard of {event.node}", killed), event.node)
        record = end(record, life, ending)
    return record


# ------------------------------------------------------------------------------------------------ ring, world, steps


def _broken(record: Record, event: RingBroken, _seq: int) -> Record:
    now = record.lives
    names = {m.worker for m in record.members}
    if event.generation != record.generation or (event.worker, event.incarnation) not in now:
        return record
    if event.peer not in names or event.peer == event.worker:
        return record
    return dataclasses.replace(record, breaks=(*record.breaks, event))


def _recovered(record: Record, event: RingRecovered, _seq: int) -> Record:
    return _whole(record) if event.generation == record.generation else record


def _committed(record: Record, event: StepsCommitted, _seq: int) -> Record:
    if event.run != record.run:
        return record
    if event.generation == record.generation:
        record = _whole(record)
    return dataclasses.replace(record, began=True, committed=max(record.committed, event.last + 1))


def _whole(record: Record) -> Record:
    """A step came round: the ring of the present world is whole."""
    inside = {m.worker for m in record.members}
    return dataclasses.replace(record, relinks=0, linkage=Linkage(), apart=record.apart - inside)


def _restored(record: Record, event: CheckpointRestored, _seq: int) -> Record:
    if event.run != record.run:
        return record
    base = record.base if record.began else event.step
    workers, who = record.workers, record.workers.get(event.worker)
    if who is not None and who.life not in record.endings:  # the others learn from it
        workers = put(workers, who.worker, dataclasses.replace(who, current=True))
    return dataclasses.replace(record, committed=event.step, base=base, workers=workers)


def _world(record: Record, event: WorldChanged, seq: int) -> Record:
    if event.generation <= record.generation:
        return dataclasses.replace(record, world_seq=max(seq, record.world_seq))
    before = record.members
    record = dataclasses.replace(record, generation=event.generation, world_seq=seq)
    if event.run != record.run:
        return record
    record = _count_break(record, event)
    now = {(m.worker, m.incarnation) for m in event.members}
    for member in before:
        life = (member.worker, member.incarnation)
        if life not in now and life not in record.endings:
            about = [e for e in event.evidence if e.about == member.worker]
            evidence = about[0] if about else observe("join", member.worker, event.decided_by, event.reason)
            record = end(record, life, Ending("evicted", evidence, member.node))
            if any(e.source == "progress" and e.certain for e in about):  # it hung until the others gave it up
                alone, hung = lives.one_node(record.nodes.values()), f"{member.worker} hung"
                dampers = damping.failed(record.dampers, member.node, record.clock, hung, alone=alone)
                record = dataclasses.replace(record, dampers=dampers)
    if event.status == "running" and not any(w.current and w.life in now for w in record.workers.values()):
        # nobody has state: all begin together, from a checkpoint or from fresh weights
        workers = {
            name: dataclasses.replace(w, current=True) if w.life in now else w for name, w in record.workers.items()
        }
        record = dataclasses.replace(record, workers=workers)
    old = {(m.worker, m.incarnation) for m in before}
    knit = bool(now) and (event.status == "running" or (record.knit and bool(old & now)))
    at_work = record.at_work if event.planned else event.generation
    return dataclasses.replace(record, world=event, breaks=(), knit=knit, at_work=at_work)


def _targets(record: Record, event: TargetsSet, seq: int) -> Record:
    record = dataclasses.replace(record, targets_seq=max(seq, record.targets_seq))
    return dataclasses.replace(record, targets=event.targets) if event.run == record.run else record


def _count_break(record: Record, event: WorldChanged) -> Record:
    """Count a relink of unchanged members, and the link that made it necessary."""
    lives = {(m.worker, m.incarnation) for m in event.members}
    if lives < record.lives and not event.apart:  # a death mends no link
        return dataclasses.replace(record, linkage=record.linkage.among({worker for worker, _ in lives}))
    if lives != record.lives or not record.breaks:
        return dataclasses.replace(record, relinks=0, linkage=Linkage(), apart=record.apart | set(event.apart))
    first = record.breaks[0]
    low, high = sorted((first.worker, first.peer))
    count = record.links.get((low, high), 0) + 1
    return dataclasses.replace(
        record,
        relinks=record.relinks + 1,
        links=put(record.links, (low, high), count),
        linkage=record.linkage.after(record.members, record.breaks),
    )


_FOLDS: Mapping[type[Event], Callable[[Record, Any, int], Record]] = {
    JobSubmitted: _submitted,
    JobScaled: _scaled,
    HostsListed: _listed,
    DrainAsked: _drain,
    JobStopAsked: _stop,
    JobFinished: _over,
    JobInexact: _inexact,
    AgentJoined: _node_joined,
    AgentLeft: _node_left,
    NodeHeld: _held,
    RingBroken: _broken,
    RingRecovered: _recovered,
    StepsCommitted: _committed,
    CheckpointRestored: _restored,
    WorldChanged: _world,
    TargetsSet: _targets,
    **lives.FOLDS,
}
