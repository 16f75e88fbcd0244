"""The fold behind `core.status`: one event of the log, or one heartbeat, and what was known give what is known now."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from reknit.core.events import (
    MAKES_WAY,
    AgentJoined,
    AgentLeft,
    Alert,
    AnyEvent,
    AnyPulse,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRequested,
    CheckpointRestored,
    CheckpointWritten,
    EpochFinished,
    HostsListed,
    JobFinished,
    JobInexact,
    JobScaled,
    JobStopAsked,
    JobSubmitted,
    Member,
    NodeHeld,
    NodePulse,
    RingRecovered,
    ShardsPlanned,
    StepsCommitted,
    WorkerCaughtUp,
    WorkerExited,
    WorkerFailed,
    WorkerFinished,
    WorkerLeaving,
    WorkerRefused,
    WorkerRegistered,
    WorkerStarted,
    WorkerStuck,
    WorldChanged,
)
from reknit.core.status import (
    GONE,
    MOST_LOSSES,
    MOST_WORLDS,
    Node,
    Saving,
    Status,
    Worker,
    WorldLine,
    finite,
)
from reknit.core.status_nodes import count_exit, seen, with_node
from reknit.core.worker_ends import ended_well, exit_in_words, last_line

K = TypeVar("K")
V = TypeVar("V")


def see(status: Status, event: AnyEvent, now: float, wall: float = 0.0, seq: int = 0) -> Status:
    """Take in one event of the log.

    Args:
        status: what is known so far.
        event: the event.
        now: the reader's monotonic seconds.
        wall: when it was said, seconds since the epoch.
        seq: its place in the log; 0: not told, then late words of an agent before the present one count too.
    """
    return seen(_see(status, event, now, wall, seq), event, wall)


def _see(status: Status, event: AnyEvent, now: float, wall: float, seq: int) -> Status:  # noqa: PLR0911 - a table
    match event:
        case WorldChanged():
            return _world(status, event, now, wall)
        case JobSubmitted() | JobScaled() | JobStopAsked() | JobInexact() | JobFinished():
            return _job(status, event, now)
        case AgentJoined() | AgentLeft() | NodeHeld():
            return with_node(status, event, wall, seq)
        case HostsListed() if event.run == status.run:
            return dataclasses.replace(status, hosts=event.hosts)
        case ShardsPlanned() | StepsCommitted() | EpochFinished() | CheckpointRestored() | RingRecovered():
            return _step(status, event, now)
        case CheckpointRequested() | CheckpointWritten() | CheckpointCommitted() | CheckpointFailed():
            return dataclasses.replace(status, saving=_saving(status.saving, event, now))
        case Alert():
            return _alert(status, event)
        case (
            WorkerStarted()
            | WorkerRegistered()
            | WorkerRefused()
            | WorkerExited()
            | WorkerFailed()
            | WorkerLeaving()
            | WorkerCaughtUp()
            | WorkerFinished()
            | WorkerStuck()
        ):
            return _worker(status, event, now)
        case _:
            return status


def hear(status: Status, pulse: AnyPulse, now: float) -> Status:
    """Take in one heartbeat; those of an older incarnation, or of nobody known, change nothing."""
    if isinstance(pulse, NodePulse):
        node = status.nodes.get(pulse.node) or Node(pulse.node)
        return dataclasses.replace(
            status, nodes=_with(status.nodes, pulse.node, dataclasses.replace(node, pulse=pulse, heard=now))
        )
    worker = status.workers.get(pulse.worker)
    if worker is None or worker.incarnation != pulse.incarnation:
        return status
    worker = dataclasses.replace(worker, pulse=pulse, heard=now)
    status = dataclasses.replace(status, workers=_with(status.workers, pulse.worker, worker))
    ahead = (pulse.generation, pulse.committed)
    if ahead > status.ahead:
        moved = now if pulse.committed > 0 else status.moved
        status = dataclasses.replace(status, ahead=ahead, moved=moved)
    if not pulse.loss_finite and status.not_finite < 0:
        status = dataclasses.replace(status, not_finite=max(pulse.committed - 1, 0))
    return status


def _with(table: Mapping[K, V], key: K, value: V) -> dict[K, V]:
    return {**table, key: value}


# -- the job ---------------------------------------------------------------------------------------------------------


def _job(
    status: Status, event: JobSubmitted | JobScaled | JobStopAsked | JobInexact | JobFinished, now: float
) -> Status:
    match event:
        case JobSubmitted():
            alive = status.spec is not None and status.finished is None
            return status if alive else _submitted(status, event, now)
        case JobScaled():
            return dataclasses.replace(status, wanted=event.workers, lost={}, apart=frozenset())
        case JobStopAsked():
            return dataclasses.replace(status, stopping=event.reason or "asked to stop")
        case JobInexact() if event.run == status.run:
            return dataclasses.replace(status, inexact=_with(status.inexact, event.worker, event.difference))
        case JobFinished() if event.run == status.run:
            return dataclasses.replace(status, finished=event, lost={}, apart=frozenset())
    return status


def _submitted(status: Status, event: JobSubmitted, now: float) -> Status:
    return Status(
        status.job,
        run=event.run,
        spec=event,
        changed=now,
        nodes={
            name: Node(name, node.host, labels=node.labels, seen=node.seen, arrival=node.arrival)
            for name, node in status.nodes.items()
            if node.up
        },
        wanted=event.max_nodes * event.nproc_per_node,
        alerts=status.alerts,
        numbers=status.numbers,
    )


def _step(
    status: Status,
    event: ShardsPlanned | StepsCommitted | EpochFinished | CheckpointRestored | RingRecovered,
    now: float,
) -> Status:
    match event:
        case ShardsPlanned():
            return dataclasses.replace(status, plan=event)
        case EpochFinished():
            return dataclasses.replace(status, epochs=max(status.epochs, event.epoch + 1))
        case StepsCommitted() if event.run == status.run:
            return _committed(status, event, now)
        case CheckpointRestored() if event.run == status.run:
            losses = tuple(point for point in status.losses if point[0] < event.step)
            return dataclasses.replace(
                status,
                committed=event.step,
                committed_in=event.generation,
                losses=losses,
                saving=_restored_saving(status.saving, event),
                not_finite=-1,
                workers=_restored(status, event.worker),
            )
        case RingRecovered():
            worlds = tuple(
                dataclasses.replace(w, recovered=event.seconds) if w.generation == event.generation else w
                for w in status.worlds
            )
            newest = max(event.generation, status.committed_in)
            return dataclasses.replace(status, worlds=worlds, committed_in=newest)
    return status


def _restored(status: Status, name: str) -> Mapping[str, Worker]:
    """Whoever restored has the state: the others learn from it."""
    worker = status.workers.get(name)
    role = next((m.role for m in status.world.members if m.worker == name), None) if status.world else None
    if worker is None or role is None or worker.state != "learning":
        return status.workers
    return _with(status.workers, name, dataclasses.replace(worker, state=role, current=True))


def _committed(status: Status, event: StepsCommitted, now: float) -> Status:
    count = event.last + 1
    if event.generation < status.committed_in or count <= status.committed:
        return status
    status = dataclasses.replace(
        status,
        committed=count,
        committed_in=event.generation,
        moved=now,
        computed_again=status.computed_again + event.computed_again,
    )
    if event.loss is None:
        return status
    if finite(event.loss) is None:
        first = event.last if status.not_finite < 0 else status.not_finite
        return dataclasses.replace(status, loss=event.loss, not_finite=first)
    losses = (*status.losses, (event.last, event.loss))
    losses = losses[::2] if len(losses) > MOST_LOSSES else losses
    return dataclasses.replace(status, loss=event.loss, losses=losses, not_finite=-1)


def _saving(
    saving: Saving,
    event: CheckpointRequested | CheckpointWritten | CheckpointCommitted | CheckpointFailed,
    now: float,
) -> Saving:
    match event:
        case CheckpointRequested():
            return dataclasses.replace(
                saving, in_flight=event.checkpoint, begun=saving.begun and saving.in_flight == event.checkpoint
            )
        case CheckpointWritten():
            begun = saving.begun or event.checkpoint == saving.in_flight
            return saving if begun == saving.begun else dataclasses.replace(saving, begun=begun)
        case CheckpointCommitted():
            return Saving(event.step, event.checkpoint, event.path, now)
        case CheckpointFailed() if event.checkpoint in (saving.checkpoint, saving.failed_id):
            return saving  # each writer says it of its own part, and one may be late: the checkpoint is there
        case CheckpointFailed():
            in_flight = "" if saving.in_flight == event.checkpoint else saving.in_flight
            # one that was asked for at a later step than the run stops at is followed by the last one: nothing failed
            counts = not event.reason.startswith(MAKES_WAY)
            return dataclasses.replace(
                saving,
                in_flight=in_flight,
                begun=saving.begun and bool(in_flight),
                failed=event.reason if counts else saving.failed,
                failed_id=event.checkpoint,
                failures=saving.failures + counts,
            )


def _restored_saving(saving: Saving, event: CheckpointRestored) -> Saving:
    return dataclasses.replace(saving, restored=event.step) if event.checkpoint else saving


def _alert(status: Status, event: Alert) -> Status:
    key = (event.alert, event.subject)
    if event.number < status.numbers.get(key, 0):
        return status
    alerts = {k: a for k, a in status.alerts.items() if k != key}
    if event.state == "raised":
        alerts[key] = event
    return dataclasses.replace(status, alerts=alerts, numbers=_with(status.numbers, key, event.number))


# -- workers ---------------------------------------------------------------------------------------------------------

WorkerTold = (
    WorkerStarted
    | WorkerRegistered
    | WorkerRefused
    | WorkerExited
    | WorkerFailed
    | WorkerLeaving
    | WorkerCaughtUp
    | WorkerFinished
    | WorkerStuck
)


def _worker(status: Status, event: WorkerTold, now: float) -> Status:
    name, incarnation = event.worker, event.incarnation
    known = status.workers.get(name)
    if known is not None and incarnation < known.incarnation:
        return status
    if known is None or incarnation > known.incarnation:
        known = Worker(name, incarnation, since=now)
    if isinstance(event, WorkerRegistered) and status.terms is None and event.run == status.run:
        status = dataclasses.replace(status, terms=event.terms)
    inside = status.world is not None and any(
        (m.worker, m.incarnation) == (name, incarnation) for m in status.world.members
    )
    if isinstance(event, WorkerRegistered) and known.state not in ("starting", "refused", *GONE):
        return status  # its connection is new
    worker = _told(known, event)
    if isinstance(event, WorkerExited):
        status = count_exit(status, known, event)
    if isinstance(event, WorkerCaughtUp) and known.state == "learning" and inside:
        assert status.world is not None
        worker = dataclasses.replace(worker, state=next(m.role for m in status.world.members if m.worker == name))
    if isinstance(event, WorkerRegistered) and status.teaches:
        worker = dataclasses.replace(worker, state="learning")
    return dataclasses.replace(status, workers=_with(status.workers, name, worker))


def _told(worker: Worker, event: WorkerTold) -> Worker:  # noqa: PLR0911 - one return a kind of event
    change = dataclasses.replace
    match event:
        case WorkerStarted():
            return change(worker, node=event.node, pid=event.pid)
        case WorkerRegistered():
            return change(worker, node=event.node, pid=event.pid, state="ready", note="", current=False)
        case WorkerCaughtUp():
            note = f"caught up at step {event.step}" if worker.state == "learning" else worker.note
            state = "ready" if worker.state == "learning" else worker.state
            return change(worker, state=state, note=note, current=True)
        case WorkerRefused():
            return change(worker, state="refused", note=event.reason)
        case WorkerExited():
            state = "finished" if ended_well(event) and worker.state != "lost" else "dead"
            return change(worker, node=event.node, state=state, note=exit_in_words(event), exit=event, stuck="")
        case WorkerFailed():
            return change(worker, note=last_line(event), failure=event)
        case WorkerLeaving():
            return change(worker, state="leaving", note=event.reason)
        case WorkerFinished():
            return change(worker, state="finished", note=f"finished after step {event.step}")
        case WorkerStuck():
            return change(worker, stuck="" if event.state.startswith(("R", "S")) else event.state)


def _world(status: Status, world: WorldChanged, now: float, wall: float) -> Status:
    if world.run != status.run:
        status = Status(status.job, run=world.run, nodes=status.nodes, alerts=status.alerts, numbers=status.numbers)
    if status.world is not None and world.generation <= status.world.generation:
        return status
    members = {m.worker for m in world.members}
    before = {m.worker: m.incarnation for m in status.world.members} if status.world else {}
    workers, lost = dict(status.workers), dict(status.lost)
    for name in world.removed:
        worker = workers.get(name)
        if worker is not None and worker.incarnation > before.get(name, worker.incarnation):
            lost[name] = world.reason  # the life that was removed; the next one of that name is here already
        elif worker is not None and worker.state not in ("leaving", "finished"):
            lost[name] = world.reason
            state = "dead" if worker.exit else "lost"
            workers[name] = dataclasses.replace(worker, state=state, note=world.reason, current=False)
    _take_in(workers, world, now)
    resumes = world.status == "running" and (status.world is None or status.world.status != "running")
    filled = 0 < status.wanted <= len(members)
    lost = {} if filled or world.status == "finished" else {w: why for w, why in lost.items() if w not in members}
    line = WorldLine(
        world.generation,
        world.status,
        tuple(m.worker for m in world.members),
        world.reason,
        world.added,
        world.removed,
        wall,
        planned=world.planned,
    )
    status = dataclasses.replace(
        status,
        world=world,
        changed=now,
        began=now if resumes else status.began,
        workers=workers,
        lost=lost,
        apart=(status.apart | frozenset(world.apart)) & lost.keys(),
        worlds=(*status.worlds[-MOST_WORLDS + 1 :], line),
    )
    return _outside(status)


def _take_in(workers: dict[str, Worker], world: WorldChanged, now: float) -> None:
    """Give the members of a new world their states; if nobody among them has the run's, all begin with the same."""
    members = [_member(workers.get(m.worker), m, now) for m in world.members]
    have = any(w.current for w in members)
    for m, w in zip(world.members, members, strict=True):
        current = w.current or (not have and world.status == "running")
        state = w.state
        if state not in ("leaving", "finished"):
            state = m.role if current or not have else "learning"
        note = "" if state in (m.role, "learning") else w.note
        workers[m.worker] = dataclasses.replace(w, node=m.node, pid=m.pid, state=state, current=current, note=note)


def _member(worker: Worker | None, member: Member, now: float) -> Worker:
    if worker is None or worker.incarnation != member.incarnation:
        return Worker(member.worker, member.incarnation, since=now)
    return worker


def _outside(status: Status) -> Status:
    """Whoever waits outside a new world learns if that ring runs, else it only waits."""
    inside = {m.worker for m in status.world.members} if status.world else set()
    before, after = ("ready", "learning") if status.teaches else ("learning", "ready")
    workers = {
        name: dataclasses.replace(w, state=after) if name not in inside and w.state == before and not w.current else w
        for name, w in status.workers.items()
    }
    return dataclasses.replace(status, workers=workers)
