"""The reducer: one input and what is known so far give what is known now, what to publish and what to do on disk. Pure.

A checkpoint goes from request to commit through the log only: the service killed at any moment reads the log again and
asks for the same things under the same ids.
"""

from __future__ import annotations

import dataclasses

import xxhash

from reknit.core import wire
from reknit.core.decision import Decision, Out, Told
from reknit.core.events import (
    MAKES_WAY,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRequested,
    Event,
    WorkerPulse,
)
from reknit.core.manifest import INDEX_NUMBER, Manifest, checkpoint_id

from .assembly import PATIENCE, PATIENCE_AFTER_END, complete, covered, missing_in_words, orphans, reassign
from .schedule import due
from .view import LAST, Flight, View, hear, see


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """Write the manifest of a checkpoint whose files are all there, and announce it.

    Attributes:
        directory: folder of all jobs' checkpoints.
        draft: the encoded `Manifest`, still without number and time.
        began_at: when it was asked for (own clock, seconds).
        trace: traceparent of the request.
    """

    directory: str
    draft: bytes
    began_at: float
    trace: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """Remove what given-up checkpoints left, and the checkpoints that retention lets go.

    Attributes:
        directory: folder of all jobs' checkpoints.
        run: the present run.
        keep: how many of the newest stay.
        given_up: ids whose files go.
        kept: ids of the run's committed checkpoints, as far as the log tells.
        after: what it follows; two sweeps after different events are two.
    """

    directory: str
    run: str
    keep: int
    given_up: tuple[str, ...]
    kept: tuple[str, ...]
    after: str


def decide(view: View, told: Told) -> Decision[View]:
    """Take in one input; while the log is replayed nothing is asked for."""
    event = told.event
    if isinstance(event, WorkerPulse):
        return Decision(hear(view, event))  # the next tick looks at it
    if isinstance(event, Event):
        view = see(view, event, told.now, told.trace)
    if not told.live or view.spec is None:
        return Decision(view)
    woken = not view.live
    if woken:
        view = _wake(view, told.now)
    view = _hold_clock(view, told.now)
    out, do, reason = _next(view, told.now)
    ended = isinstance(event, CheckpointCommitted | CheckpointFailed)
    if (woken or ended) and view.spec is not None and view.spec.checkpoint_dir:
        after = event.checkpoint if isinstance(event, CheckpointCommitted | CheckpointFailed) else "start"
        keep = view.spec.checkpoint_keep
        do = (*do, Sweep(view.spec.checkpoint_dir, view.spec.run, keep, view.given_up, view.kept, after))
    return Decision(view, out, reason, do)


def _next(view: View, now: float) -> tuple[tuple[Out, ...], tuple[object, ...], str]:
    """Return what to publish, what to do and why."""
    refusals = tuple(_failure(checkpoint, "another checkpoint is being written") for checkpoint in view.refused)
    flight = view.flight
    if flight is None:
        wanted = due(view, now)
        if wanted is None or view.spec is None:
            return refusals, (), ""
        checkpoint = checkpoint_id(view.spec.run, view.asked + 1)
        request = CheckpointRequested(checkpoint=checkpoint, at_step=wanted.at_step, reason=wanted.reason)
        reason = f"checkpoint {checkpoint} asked for, not before step {wanted.at_step}: {wanted.reason}"
        return (*refusals, Out(request, id=checkpoint)), (), reason
    fault = _fault(view, flight, now)
    if fault:
        return (*refusals, _failure(flight.checkpoint, fault, flight)), (), f"{flight.checkpoint} given up: {fault}"
    if complete(flight) and covered(flight, view.ledger):
        return refusals, (_commit(view, flight),), f"{flight.checkpoint}: all files of step {flight.step} are there"
    if orphans(flight):
        parts = reassign(flight)
        gone = ", ".join(sorted(flight.gone & set(flight.writers)))
        again = CheckpointRequested(
            checkpoint=flight.checkpoint, at_step=flight.step, reason=f"{gone} is gone", reassigned=parts
        )
        key = xxhash.xxh3_64_hexdigest(wire.pack(sorted(parts.items())))
        out = Out(again, id=f"{flight.checkpoint}-{key}", trace=flight.trace)
        return (*refusals, out), (), f"{flight.checkpoint}: {gone} is gone, its files go to {', '.join(parts)}"
    return refusals, (), ""


def _fault(view: View, flight: Flight, now: float) -> str:
    if flight.fault:
        return flight.fault
    if complete(flight) and covered(flight, view.ledger):
        return ""
    if view.ending and flight.step < 0 and flight.reason not in LAST and view.reached < flight.at_step:
        return f"{MAKES_WAY} {flight.at_step}"
    if orphans(flight) and not reassign(flight):
        return f"nobody who holds the copy is left; {missing_in_words(flight)}"
    patience = PATIENCE_AFTER_END if view.over else PATIENCE
    if now - flight.moved_at > patience:
        lack = missing_in_words(flight)
        if complete(flight):
            lack = (
                f"all files are there, but the ledger ends at step {view.ledger} and the state is that of {flight.step}"
            )
        return f"nothing came for {patience:g} s; {lack}"
    return ""


def _failure(checkpoint: str, reason: str, flight: Flight | None = None) -> Out:
    failed = CheckpointFailed(checkpoint=checkpoint, reason=reason, step=flight.step if flight else -1)
    return Out(failed, id=f"{checkpoint}-failed", trace=flight.trace if flight else "")


def _commit(view: View, flight: Flight) -> Commit:
    spec, terms, course = view.spec, view.terms, view.course
    assert spec is not None
    chunks = tuple(flight.files[number] for number in range(flight.chunks))
    draft = Manifest(
        checkpoint=flight.checkpoint,
        number=0,
        job=view.job,
        run=spec.run,
        step=flight.step,
        index=flight.files[INDEX_NUMBER],
        chunks=chunks,
        epoch=course.epoch_of(flight.step) if course else 0,
        seed=terms.seed if terms else 0,
        terms=terms,
        generation=flight.generation,
        chain=flight.chain,
        parent=view.parent,
        bytes=sum(stored.bytes for stored in flight.files.values()),
    )
    return Commit(spec.checkpoint_dir, wire.encode(draft), flight.began_at, flight.trace)


def _wake(view: View, now: float) -> View:
    flight = view.flight
    if flight is not None:
        flight = dataclasses.replace(flight, began_at=now, moved_at=now)
    return dataclasses.replace(view, live=True, marked_at=now, flight=flight)


def _hold_clock(view: View, now: float) -> View:
    """A checkpoint whose step has not come yet, or a job that does not train, is not late.

    A request may come when the step in flight is agreed upon already: the next one takes it, and it is written in the
    one after that. However long a step takes, only then can something be late.
    """
    flight = view.flight
    if flight is None or flight.step >= 0 or view.over:
        return view
    if view.reached >= flight.at_step + 2 and view.running:
        return view
    return dataclasses.replace(view, flight=dataclasses.replace(flight, moved_at=now))
