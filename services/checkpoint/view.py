"""What the service knows of one job, folded from the log. Pure.

Everything here follows from events alone, but for `marked_at` and `moved_at`, which are this process's own clock (after
a restart of the service they begin anew, which makes it patient, never hasty), and `beaten`, which heartbeats tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from reknit.core.errors import UsageError
from reknit.core.events import (
    AnyEvent,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
    CheckpointHeld,
    CheckpointRequested,
    CheckpointRestored,
    CheckpointWritten,
    JobFinished,
    JobStopAsked,
    JobSubmitted,
    StepsCommitted,
    Terms,
    WorkerLeaving,
    WorkerPulse,
    WorkerRegistered,
    WorldChanged,
)
from reknit.core.manifest import INDEX_NUMBER, StoredFile, assign, file_numbers
from reknit.core.order import Course

JOB_STOPS = "job stops"
"""Reason of the last checkpoint of a run that is stopped politely."""
ALL_LEAVE = "all workers leave"
"""Reason of a checkpoint of what nobody would have any more."""
LAST = frozenset({JOB_STOPS, ALL_LEAVE})


@dataclasses.dataclass(frozen=True, slots=True)
class Flight:
    """A checkpoint that was asked for and is not committed yet.

    Attributes:
        checkpoint: its id.
        at_step: not before this many committed steps.
        reason: why it was asked for.
        trace: traceparent of the request.
        began_at, moved_at: when it was asked for, and when something of it was heard last (own clock, seconds).
        step: steps committed in it; -1 until the first file is written.
        chunks: how many chunks it has.
        chain, generation: what the first file said.
        writers: who holds a copy of the state, in ring order.
        owners: file number -> who shall write it.
        files: file number -> what is durable.
        gone: workers that left the world since.
        fault: why it cannot become a checkpoint, in words; empty if it can.
    """

    checkpoint: str
    at_step: int = 0
    reason: str = ""
    trace: str = ""
    began_at: float = 0.0
    moved_at: float = 0.0
    step: int = -1
    chunks: int = 0
    chain: int = 0
    generation: int = 0
    writers: tuple[str, ...] = ()
    owners: Mapping[int, str] = dataclasses.field(default_factory=dict)
    files: Mapping[int, StoredFile] = dataclasses.field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    fault: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """What is known of one job.

    Attributes:
        job: its name.
        spec: how the present run was submitted; None before.
        terms: what its workers agreed on.
        over: the run is finished.
        stopping: somebody asked for a polite stop.
        running: the newest world trains.
        members: worker -> incarnation in the newest world, in ring order.
        generation: of the newest world.
        step: committed steps, as far as the log tells; it comes in lots, some seconds late.
        ledger: committed steps with a record in the ledger.
        beaten: committed steps, as far as the newest heartbeats of this generation tell.
        asked: checkpoints asked for in this run so far.
        mark: committed steps at the newest checkpoint that was asked for or restored.
        marked_at: when that was (own clock, seconds).
        saved: committed steps in the newest committed checkpoint of this run, -1 without one.
        parent: id of the newest committed or restored checkpoint.
        leaving: worker -> incarnation that asked to leave.
        final: the last checkpoint before a stop, or before all leave, was asked for.
        flight: the checkpoint being made.
        kept: ids of the committed ones of this run that are not deleted.
        given_up: ids of failed ones, whose files may have to be removed.
        refused: ids of requests that came while another one was under way.
        live: inputs are live; False while the log is replayed.
    """

    job: str
    spec: JobSubmitted | None = None
    terms: Terms | None = None
    over: bool = False
    stopping: bool = False
    running: bool = False
    members: Mapping[str, int] = dataclasses.field(default_factory=dict)
    generation: int = 0
    step: int = 0
    ledger: int = 0
    beaten: int = 0
    asked: int = 0
    mark: int = 0
    marked_at: float = 0.0
    saved: int = -1
    parent: str = ""
    leaving: Mapping[str, int] = dataclasses.field(default_factory=dict)
    final: bool = False
    flight: Flight | None = None
    kept: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    live: bool = False

    @property
    def reached(self) -> int:
        """Committed steps, as well as is known."""
        return max(self.step, self.beaten)

    @property
    def ending(self) -> bool:
        """The run stops politely, or all its workers leave: after that nobody has the state."""
        return self.stopping or _all_leave(self.members, self.leaving)

    @property
    def course(self) -> Course | None:
        """The run's course over its data; None before its workers told it."""
        terms = self.terms
        if terms is None:
            return None
        try:
            return Course(terms.samples, terms.micro_batch, terms.slots, terms.epochs, terms.seed)
        except UsageError:  # such terms cannot train; membership says so
            return None


def see(view: View, event: AnyEvent, now: float, trace: str = "") -> View:  # noqa: C901, PLR0911, PLR0912 - one line a kind
    """Fold one event of the log into the view.

    Args:
        view: what was known.
        event: what was said.
        now: own clock, seconds.
        trace: traceparent of the event.
    """
    match event:
        case JobSubmitted():
            return _submitted(view, event, now)
        case JobFinished():
            return dataclasses.replace(view, over=True)
        case JobStopAsked():
            return dataclasses.replace(view, stopping=not event.at_once)
        case WorkerRegistered() if view.spec is not None and event.run == view.spec.run and view.terms is None:
            return dataclasses.replace(view, terms=event.terms)
        case WorkerLeaving():
            return dataclasses.replace(view, leaving={**view.leaving, event.worker: event.incarnation})
        case WorldChanged():
            return _world(view, event)
        case StepsCommitted() if view.spec is not None and event.run == view.spec.run:
            step = max(view.step, event.last + 1)
            return dataclasses.replace(view, step=step, ledger=max(view.ledger, event.last + 1))
        case CheckpointRestored() if view.spec is not None and event.run == view.spec.run:
            return _restored(view, event, now)
        case CheckpointRequested():
            return _requested(view, event, now, trace)
        case CheckpointWritten():
            return _written(view, event, now)
        case CheckpointHeld():
            return _told(view, event, now)
        case CheckpointCommitted():
            return _committed(view, event)
        case CheckpointFailed():
            return _failed(view, event)
        case CheckpointDeleted():
            return dataclasses.replace(view, kept=tuple(c for c in view.kept if c != event.checkpoint))
    return view


def hear(view: View, pulse: WorkerPulse) -> View:
    """Take in a heartbeat: how far the run is."""
    if pulse.generation != view.generation or pulse.committed <= view.beaten:
        return view
    return dataclasses.replace(view, beaten=pulse.committed)


def _submitted(view: View, event: JobSubmitted, now: float) -> View:
    if view.spec is not None and not view.over:
        return view  # a run is alive: only one at a time
    given_up = (*view.given_up, view.flight.checkpoint) if view.flight else view.given_up
    return View(view.job, spec=event, marked_at=now, given_up=given_up, live=view.live)


def _world(view: View, event: WorldChanged) -> View:
    members = {member.worker: member.incarnation for member in event.members}
    gone = {worker for worker, incarnation in view.members.items() if members.get(worker) != incarnation}
    gone.update(event.removed)
    flight = view.flight
    if flight is not None:
        # before the first file nobody knows who has the copy: a worker that is back by then may be one of them
        before = flight.gone if flight.writers else flight.gone - members.keys()
        flight = dataclasses.replace(flight, gone=before | gone)
    return dataclasses.replace(
        view,
        generation=event.generation,
        members=members,
        running=event.status == "running",
        # should others come and leave once more, that is another end
        final=view.final and (view.stopping or not members or _all_leave(members, view.leaving)),
        flight=flight,
    )


def _all_leave(members: Mapping[str, int], leaving: Mapping[str, int]) -> bool:
    return bool(members) and all(leaving.get(worker) == incarnation for worker, incarnation in members.items())


def _restored(view: View, event: CheckpointRestored, now: float) -> View:
    flight = view.flight
    if flight is not None and flight.step < 0:
        flight = dataclasses.replace(flight, fault=f"all workers were lost; the run goes on from step {event.step}")
    return dataclasses.replace(
        view,
        step=event.step,
        ledger=event.step,
        beaten=event.step,
        mark=event.step,
        marked_at=now,
        saved=event.step if event.checkpoint else -1,
        parent=event.checkpoint or view.parent,
        flight=flight,
    )


def _requested(view: View, event: CheckpointRequested, now: float, trace: str) -> View:
    flight = view.flight
    if flight is not None and flight.checkpoint == event.checkpoint:
        owners = {number: worker for worker, numbers in event.reassigned.items() for number in numbers}
        if not owners:
            return view
        return dataclasses.replace(
            view, flight=dataclasses.replace(flight, owners={**flight.owners, **owners}, moved_at=now)
        )
    if event.reassigned or event.checkpoint in view.given_up:
        return view
    if flight is not None:
        return dataclasses.replace(view, refused=(*view.refused, event.checkpoint))
    return dataclasses.replace(
        view,
        asked=view.asked + 1,
        mark=max(view.mark, event.at_step),
        marked_at=now,
        final=view.final or event.reason in LAST,
        flight=Flight(event.checkpoint, event.at_step, event.reason, trace=trace, began_at=now, moved_at=now),
    )


def _written(view: View, event: CheckpointWritten, now: float) -> View:
    view = _told(view, event, now)
    flight = view.flight
    if flight is None or flight.checkpoint != event.checkpoint or flight.fault:
        return view
    if not INDEX_NUMBER <= event.chunk < flight.chunks:
        fault = f"{event.worker} wrote chunk {event.chunk} of {flight.chunks}"
        return dataclasses.replace(view, flight=dataclasses.replace(flight, fault=fault))
    stored = StoredFile(number=event.chunk, file=event.file, bytes=event.bytes, hash=event.hash, worker=event.worker)
    files = {event.chunk: stored, **flight.files}  # written twice: the first one counts
    return dataclasses.replace(view, flight=dataclasses.replace(flight, files=files))


def _told(view: View, event: CheckpointWritten | CheckpointHeld, now: float) -> View:
    """Somebody holds the copy: what is to be written and by whom is known from the first one on."""
    flight = view.flight
    if flight is None or flight.checkpoint != event.checkpoint or flight.fault:
        return view
    if flight.step < 0:
        flight = _first_told(view, flight, event)
    fault = _contradiction(flight, event)
    if fault:
        return dataclasses.replace(view, flight=dataclasses.replace(flight, fault=fault))
    flight = dataclasses.replace(flight, moved_at=now)
    return dataclasses.replace(view, flight=flight, mark=max(view.mark, event.step), step=max(view.step, event.step))


def _first_told(view: View, flight: Flight, event: CheckpointWritten | CheckpointHeld) -> Flight:
    writers = event.writers or tuple(view.members) or (event.worker,)
    parts = assign(file_numbers(event.chunks), writers)
    return dataclasses.replace(
        flight,
        step=event.step,
        chunks=event.chunks,
        chain=event.chain,
        generation=event.generation,
        writers=writers,
        owners={number: worker for worker, numbers in parts.items() for number in numbers},
    )


def _contradiction(flight: Flight, event: CheckpointWritten | CheckpointHeld) -> str:
    said = (event.step, event.chunks, event.chain)
    if said != (flight.step, flight.chunks, flight.chain):
        return (
            f"{event.worker} holds step {event.step}, chain {event.chain:016x}, {event.chunks} chunks; "
            f"others step {flight.step}, chain {flight.chain:016x}, {flight.chunks} chunks"
        )
    return ""


def _committed(view: View, event: CheckpointCommitted) -> View:
    flight = view.flight
    return dataclasses.replace(
        view,
        parent=event.checkpoint,
        saved=event.step,
        flight=None if flight is not None and flight.checkpoint == event.checkpoint else flight,
        kept=(*(c for c in view.kept if c != event.checkpoint), event.checkpoint),
        given_up=tuple(c for c in view.given_up if c != event.checkpoint),
    )


def _failed(view: View, event: CheckpointFailed) -> View:
    refused = tuple(c for c in view.refused if c != event.checkpoint)
    view = dataclasses.replace(view, refused=refused)
    flight = view.flight
    if flight is None or flight.checkpoint != event.checkpoint:
        return view
    return dataclasses.replace(view, flight=None, given_up=(*view.given_up, event.checkpoint))
