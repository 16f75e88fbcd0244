"""The main thread's side of a run: hands slots to the script, applies results, copies, loads and restores state.

One `Run` a session, made by `ring.steps(...)`. What it is told to do comes from `Exchange.take`.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, assert_never

import torch

from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.context import WorkerContext
from reknit.core.errors import CheckpointError, RefusedByJob, StateError, UsageError
from reknit.core.events import (
    ChaosAsked,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRequested,
    CheckpointRestored,
    JobDoubted,
    JobFinished,
    JobInexact,
    JobStopAsked,
    Member,
    ShardsPlanned,
    Terms,
    WorkerCaughtUp,
    WorkerFinished,
    WorkerLeaving,
    WorkerRefused,
    WorkerRegistered,
    WorldChanged,
)
from reknit.core.layout import Layout
from reknit.core.manifest import list_manifests
from reknit.core.order import Course

from . import canary, numerics, restore, state
from .alarm import Alarm
from .arrivals import Arrivals
from .batches import Batches, Collate
from .board import Alone, Board, OnTheLog
from .chaos import Chaos
from .digest import OptimizerDigest, Watch, WeightsDigest
from .engine import Engine
from .evaluation import Evaluations, Measure
from .exchange import Exchange
from .feed import Feeder
from .flat import Flat
from .identity import Identity
from .overdue import end_process
from .overlap import Overlap
from .ports import Outlet, Span
from .pulse import Gauge
from .rehearsal import gradient_digest
from .ring.control import Plan, SlotNote
from .ring.listener import Listener
from .ring.vote import Diverged
from .saving import Saving
from .standpoint import Standpoint
from .step import Step
from .teaching import Teacher
from .tracked import Tracked
from .transport.choice import Choice
from .work import Apply, Begin, ComeBack, Compute, Copy, Done, Leave, Load, Rehearse, Restore, Result, Verify

_AREAS = ("world", "shards", "checkpoint", "job")
_BEAT = 0.25
_HAND_OVER = 5.0
"""Seconds to send and store what was begun when the script leaves the loop early."""
_WRITING = 60.0
"""Seconds to finish checkpoint files at the end of a run."""


class Left(SystemExit):
    """This worker was drained or its run stopped: the process ends well, without the script's code after the loop."""

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason


class Run:
    """Everything that exists from the call of `ring.steps` on.

    Args:
        context: what the agent said; without a launcher the context of a world of one.
        tracked: the tracked objects, complete.
        batches: micro-batches of the course.
        bus: None in a world of one.
        outlet: where events go.

    Attributes:
        step, slot, samples: where the script is, for failure reports; slot -1 between two micro-batches.
        members: workers of the newest running world, in ring order.
        members_of: generation of that world.
        current: the step that the script was given last, None before the first and after the last.
        stage: the script is `before` the loop over its micro-batches, `after` it, or at the `end`; "" before the first.
        position, chain: committed steps in the weights, and the result chain after them.
    """

    def __init__(
        self,
        context: WorkerContext,
        tracked: Tracked,
        batches: Batches,
        *,
        bus: BusThread | None,
        outlet: Outlet,
    ) -> None:
        self.context = context
        self.course: Course = batches.course
        self.step = -1
        self.slot = -1
        self.samples: tuple[int, ...] = ()
        self.members: tuple[str, ...] = ()
        self.members_of = 0
        self.stage = ""
        self.position = self.chain = 0
        self.current: Step | None = None
        self._tracked = tracked
        self._batches = batches
        self._bus = bus
        self._outlet = outlet
        self._gauge = Gauge()
        self._alarm = Alarm(context.worker, context.run, outlet.post)
        self._done = 0
        self._over = False
        self._learned_at: float | None = None
        self._canary = canary.sing() if bus else ""
        tracked.prime()
        self._flat = Flat(tracked, cached=self.course.slots + 8)
        self._sums = Choice(
            context.transport,
            self._flat.shape,
            self._flat.buckets,
            self.course.slots,
            [p for _, p in tracked.trained()],
        )
        if self._sums.bounds is not None:
            tracked.add(reknit_bounds=self._sums.bounds)
        self.shared = Exchange(
            context.worker, context.incarnation, self._sums.shape, self._used_slots, self.course.steps
        )
        self.shared.weights.verify = context.verify_weights
        names = [name for name, _ in tracked.buffers()]
        self._arrivals = Arrivals(
            self._flat,
            self.shared,
            Overlap(context.overlap if bus and self._sums.bounds is None else "off"),
            lambda text: print(f"reknit: {text}", file=sys.stderr, flush=True),  # noqa: T201 - the worker's log
        )
        self._weights = WeightsDigest(tracked.parameters(), names, lambda: self._flat.committed)
        self._optimizers = OptimizerDigest(tracked)
        self._watch = Watch(self._weights)
        self._chaos = Chaos(context.worker, tracked, allowed=context.chaos)
        self.shared.samples = lambda step, slot: tuple(self.course.slot_samples(step, slot).tolist())
        self._saving = Saving(
            context.worker,
            tracked,
            self.shared,
            job=context.job,
            directory=context.checkpoint_dir,
            post=outlet.post,
            digests=(self._weights, self._optimizers) if context.verify_weights else None,
        )
        self._feeder = Feeder(self.shared)
        self._teacher = Teacher(self.shared, self._saving.ready)
        self._listener = (
            Listener(context.job, context.worker, context.secret, context.host, self._arrived, lanes=context.lanes)
            if bus
            else None
        )
        self._engine = Engine(
            Identity(context.job, context.run, context.node, context.worker, context.secret),
            self.shared,
            self.course.slots,
            listener=self._listener,
            outlet=outlet,
            register=self._register,
            loss_of=self._loss_of,
            feeder=self._feeder,
            transport=self._sums.make(context.host, self.shared.moved),
        )
        self.evaluations = Evaluations(
            run=context.run,
            worker=context.worker,
            seed=self.course.seed,
            tracked=tracked,
            run_is=Standpoint(self),
            board=self._board,
        )
        self._engine.caller.fresh_digest = state.digest(tracked) or 1
        self._engine.caller.restorable = self._restorable()

    def start(self) -> None:
        """Start the engine, and register with the job (or be a world of one)."""
        self._engine.start()
        if self._bus is None:
            self._engine.on_world(_alone(self.context))
            return
        self._bus.follow(self._hear, job=self.context.job, areas=_AREAS, from_seq=0)
        self._bus.every(_BEAT, self._beat)
        self._register(self.shared.incarnation, -1)
        last = self._bus.call(lambda bus: bus.last_world(self.context.job))
        if last is not None:  # the run goes on: we are a candidate
            self._hear(last)

    def close(self, *, failed: bool) -> None:
        """End all threads and sockets; a checkpoint that is being written is finished unless the script failed."""
        if not failed and not self._over:
            self._stop_early()
        self._engine.close()
        self._arrivals.close()
        self._teacher.close()
        if self._listener is not None:
            self._listener.close()
        self._saving.close(0.0 if failed else _WRITING)

    # ------------------------------------------------------------------------------------------ the loop

    def steps(self) -> Iterator[Step]:
        """See `Ring.steps`."""
        shared = self.shared
        entered = self._take(None)
        if not isinstance(entered, Begin):
            raise AssertionError(f"a run begins with {entered}")  # noqa: TRY004 - a bug here, not a wrong argument
        self.step = entered.step
        while self.step < shared.total:
            self._begin(self.step)
            step = self.current = Step(self, self.step)
            self.stage = "before"
            yield step
            if not step.complete:
                raise UsageError(
                    f"the loop over the micro-batches of step {step.index} was left early",
                    hint="iterate `for batch in step:` to its end before the optimizer's step",
                )
            self.step = step.index + 1
        self.current = None
        self._finish()
        self.stage = "end"

    def work_on(self, step: Step) -> Iterator[Any]:
        """Compute slots as they are handed out until the step's result is there; yields micro-batches."""
        while not step.complete:
            match self._take(step):
                case Compute(number, slot, orphan):
                    began = time.monotonic()
                    yield self._begin_slot(step, number, slot)
                    self._end_slot(step, number, slot)
                    seconds = time.monotonic() - began
                    self._gauge.slot_took(seconds)
                    if orphan:
                        self._outlet.span(
                            Span("step.recompute", seconds, seconds, self._engine.trace, {"step": number, "slot": slot})
                        )
                case Rehearse(number, slot):
                    self._flat.begin_slot()
                    yield self._hand_out(step, number, slot)
                    self._end_rehearsal(step, number)
                case Apply(number, result):
                    self._apply(step, number, result)
                case Begin(number):
                    step.index = number
                case Done():
                    raise AssertionError("the run is over in the middle of a step")
                case never:
                    assert_never(never)

    def _begin_slot(self, step: Step, number: int, slot: int) -> Any:
        self._flat.begin_slot()
        if self.shared.weights.verify:
            self._watch.begin(number, self.shared.weights.witnesses)
        self._chaos.at(number)
        batch = self._hand_out(step, number, slot)
        self._arrivals.begin(number, slot, full=len(self.samples) == self.course.micro_batch)
        return batch

    def _hand_out(self, step: Step, number: int, slot: int) -> Any:
        self.step, self.slot, self.samples = number, slot, self._batches.samples(number, slot)
        batch = self._batches.fetch(number, slot)
        step.begin_slot()
        return batch

    def _end_slot(self, step: Step, number: int, slot: int) -> None:
        count = len(self.samples)
        loss, metrics = step.end_slot()
        self._flat.check_unchanged()
        begun, copied = self._arrivals.end()
        buffer = self.shared.pool.take() if begun is None else begun
        self._flat.collect(buffer, weight=count / self.course.micro_batch, loss=loss, samples=count, copied=copied)
        bad = self.samples if loss is not None and not math.isfinite(loss) else ()
        sums = {name: (value * count, float(count)) for name, value in metrics.items()}
        proof = gradient_digest(self._flat.shape, buffer) if slot == self.shared.proof_slot(number) else 0
        note = SlotNote(slot, sums, bad, proof)
        self.shared.put(number, slot, buffer, note if sums or bad or proof else None)
        self._arrivals.handed_in()
        self.slot, self.samples = -1, ()

    def _end_rehearsal(self, step: Step, number: int) -> None:
        """A slot that another worker had was computed, to compare; nothing of it is used."""
        count = len(self.samples)
        loss, _ = step.end_slot()
        buffer = self.shared.pool.take()
        self._flat.collect(buffer, weight=count / self.course.micro_batch, loss=loss, samples=count)
        outcome = self.shared.rehearsed(gradient_digest(self._flat.shape, buffer))
        self.shared.pool.give(buffer)
        self.slot, self.samples = -1, ()
        if outcome in ("unsteady", "other"):
            self._tell_rehearsal(self.shared.rehearsal.words(number, outcome), refused=outcome == "other")

    def _tell_rehearsal(self, what: str, *, refused: bool) -> None:
        shared, context = self.shared, self.context
        if refused:
            why = f"this worker computes other bits than the job's: {what}"
            self._outlet.post(WorkerRefused(worker=shared.worker, incarnation=shared.incarnation, reason=why))
            raise RefusedByJob(why)
        self._outlet.post(
            JobInexact(
                run=context.run,
                worker=shared.worker,
                incarnation=shared.incarnation,
                node=context.node,
                difference=what,
            )
        )

    def _apply(self, step: Step, number: int, result: Result) -> None:
        first, end = self.course.span(number)
        self._saving.wait()
        self._chaos.before_apply(number, result.buffer[: self._flat.shape.sections[0].gradients or None])
        summary = self._flat.apply(result.buffer, samples=end - first, micro_batch=self.course.micro_batch)
        self._sums.applied(result.buffer)
        self._batches.settle(number)
        self._saving.compared(number, result.of.settled.weights, result.of.settled.state)
        self._saving.agreed(result.of)
        self._arrivals.completed(number, result.of.generation)
        self._gauge.committed(end - first, summary.loss)
        self._alarm.committed(result.of, summary.loss)
        self._done = self.position = number + 1
        self.chain = result.of.chain
        self.stage = "after"
        step.loss = summary.loss
        step.metrics = dict(result.of.settled.metrics)
        step.nonfinite = result.of.settled.nonfinite
        step.generation = result.of.generation
        step.complete = True
        self.shared.enter("user")

    def _take(self, step: Step | None) -> Compute | Rehearse | Apply | Begin | Done:
        """Next work for the loop; copies, loads and restores are done on the way. `Begin`: the state is that step's."""
        shared = self.shared
        while True:
            match shared.take():
                case Leave(reason):
                    self._over = True
                    raise Left(reason)
                case ComeBack():
                    if shared.whole:
                        self._learned_at = time.monotonic()
                    self._engine.come_back()
                case Restore():
                    self._restore()
                case Load(copy):
                    self._saving.wait()
                    state.load(self._tracked, Layout.decode(copy.layout), copy.memory)
                    self._flat.commit_buffers()
                    self._watch.forget()
                    self._saving.forget()
                    self._engine.ledger.take_over(copy.ledger)
                    self._learned_at = time.monotonic()
                    self.position, self.chain = copy.step, copy.chain
                    shared.loaded(copy.step)
                    if step is not None:
                        self._begin(copy.step)
                    return Begin(copy.step)
                case Copy(number):
                    self._flat.restore_buffers()
                    self._saving.copy_for_learners(
                        number, self._chain_before(number), shared.generation, self._engine.ledger.export()
                    )
                case Verify(number):
                    self._verify(number)
                case Compute() | Rehearse() | Apply() | Begin() | Done() as work:
                    return work
                case never:
                    assert_never(never)

    def _verify(self, step: int) -> None:
        """Take the digest of the weights that a step was computed with; after the last step, of all the state."""
        digest = self._weights.take()
        wanted = step in (self.shared.total, self._saving.taken_at)
        self.shared.verified(
            step,
            digest,
            before=self._watch.changed(step, digest),
            state=self._optimizers.take() if wanted else 0,
        )

    def _chain_before(self, step: int) -> int:
        with self.shared.cv:
            before = self.shared.results.get(step - 1)
            return before.of.chain if before is not None else self.shared.chain

    def _begin(self, step: int) -> None:
        shared = self.shared
        self._flat.commit_buffers()  # the script may have changed some since the last step: an average's counter, say
        self._saving.begin(step)
        shared.begin(step)
        if self._learned_at is not None and step >= shared.step:
            seconds, self._learned_at = time.monotonic() - self._learned_at, None
            self._outlet.post(
                WorkerCaughtUp(
                    worker=shared.worker,
                    incarnation=shared.incarnation,
                    generation=max(shared.generation, shared.world.generation if shared.world else 0),
                    step=step,
                    seconds=seconds,
                )
            )

    def _finish(self) -> None:
        """After the last step: serve learners until everybody has the last result, then say so."""
        shared = self.shared
        stopped = shared.total < self.course.steps
        self._begin(self.step)
        shared.enter("finish")
        while not isinstance(work := self._take(None), Done):
            if not isinstance(work, Begin):  # left out and taken in again meanwhile: the state received is the last
                raise AssertionError(f"{work} after the last step")  # noqa: TRY004 - a bug here
            self._begin(work.step)
        self._saving.wait()
        self._saving.compared(shared.total, shared.weights.of(shared.total), shared.weights.state)
        self._saving.close(_WRITING)
        self._say_finished(shared.total)
        if stopped:
            raise Left("the run was stopped")

    def _stop_early(self) -> None:
        """The script left the loop before its last step, and well: it has had enough (early stopping)."""
        self._engine.hand_over(_HAND_OVER)
        self._say_finished(self._done)

    def _say_finished(self, step: int) -> None:
        shared = self.shared
        self._over = True
        self._outlet.post(
            WorkerFinished(
                worker=shared.worker,
                incarnation=shared.incarnation,
                generation=shared.generation,
                step=step,
                state_hash=f"{state.digest(self._tracked):016x}",
            )
        )

    def evaluate(
        self, dataset: Any, measure: Measure, *, micro_batch: int, name: str, collate: Collate | None
    ) -> dict[str, float]:
        """See `Ring.evaluate`."""
        try:
            return self.evaluations.evaluate(dataset, measure, micro_batch=micro_batch, name=name, collate=collate)
        finally:
            self.samples = ()
            self.shared.enter("finish" if self.stage == "end" else "user")

    def hangs(self, why: str) -> None:
        """The main thread hangs where nobody waits for it (called on another thread): this process ends."""
        if self._bus is not None:
            shared = self.shared
            end_process(
                self._bus,
                self.context.job,
                worker=shared.worker,
                incarnation=shared.incarnation,
                step=self.step,
                why=why,
            )

    def raise_if_over(self) -> None:
        """Raise what ended the engine, or `Left` if this worker is out of the run for good."""
        with self.shared.cv:
            error, left = self.shared.error, self.shared.left
        if error is not None:
            raise error
        if left:
            self._over = True
            raise Left(left)

    def gradients(self, parameters: Sequence[torch.nn.Parameter] | None) -> list[torch.Tensor]:
        """Gradients in place after a step, of all trained parameters or of some.

        Raises:
            UsageError: no step's gradient is in place.
        """
        if self._done == 0 or (self.current is not None and not self.current.complete):
            raise UsageError(
                "the gradient of the step is not in place yet",
                hint="clip after the loop over the micro-batches, before optimizer.step()",
            )
        return [p.grad for p in (self._flat.parameters if parameters is None else parameters) if p.grad is not None]

    def _used_slots(self, step: int) -> int:
        first, end = self.course.span(step)
        return -(-(end - first) // self.course.micro_batch)

    def _loss_of(self, result: Result) -> float | None:
        return self._flat.summary(result.buffer).loss

    # ------------------------------------------------------------------------------------------- the job

    def leave(self, reason: str) -> None:
        """Ask to be planned out; the loop ends at a step boundary with `Left`."""
        shared = self.shared
        with shared.cv:
            if shared.leaving:
                return
            shared.leaving = reason
            if shared.generation == 0:
                shared.left = reason
            shared.cv.notify_all()
        self._outlet.post(WorkerLeaving(worker=shared.worker, incarnation=shared.incarnation, reason=reason))

    def _board(self) -> Board:
        if self._bus is None:
            return Alone()
        context = self.context
        return OnTheLog(self._bus, job=context.job, run=context.run, worker=context.worker, check=self.raise_if_over)

    def _arrived(self) -> None:
        if self._listener is not None:
            self._teacher.arrived(self._listener)
            self._feeder.arrived(self._listener)
        self.shared.notify()

    def _register(self, incarnation: int, held: int) -> None:
        context, course = self.context, self.course
        self._outlet.post(
            WorkerRegistered(
                worker=context.worker,
                incarnation=incarnation,
                node=context.node,
                run=context.run,
                pid=os.getpid(),
                address=self._listener.address if self._listener else "",
                terms=Terms(
                    slots=course.slots,
                    micro_batch=course.micro_batch,
                    samples=course.samples,
                    epochs=course.epochs,
                    seed=course.seed,
                    parameters=self._tracked.signature(),
                    numerics=numerics.contract(p for _, p in self._tracked.parameters()),
                    canary=self._canary,
                    verify=context.verify_weights,
                    transport=context.transport,
                ),
                has_state_of=held,
                client_id=self._bus.client_id if self._bus else 0,
            )
        )

    def _hear(self, received: Received) -> None:
        event, engine, shared = received.event, self._engine, self.shared
        match event:
            case WorldChanged():
                if event.status == "running":
                    self.members, self.members_of = tuple(m.worker for m in event.members), event.generation
                engine.on_world(event, received.trace)
            case ShardsPlanned():
                engine.on_plan(Plan(event.generation, event.version, event.ranges))
            case CheckpointRequested() | CheckpointCommitted() | CheckpointFailed():
                self._saving.hear(event)
                if isinstance(event, CheckpointRequested) and not event.reassigned and engine.stopping:
                    engine.checkpoint_asked()
            case JobStopAsked():
                # of this run: only what is said from our start on is heard
                engine.stop(awaits_checkpoint=bool(self.context.checkpoint_dir) and not event.at_once)
            case WorkerRefused():
                if (event.worker, event.incarnation) == (shared.worker, shared.incarnation):
                    shared.fail(RefusedByJob(event.reason))
            case ChaosAsked():
                self._chaos.hear(event)
            case JobDoubted():
                self._doubted(event)
            case JobFinished() if event.run == self.context.run and event.outcome != "completed":
                with shared.cv:
                    shared.left = shared.left or f"the run is over: {event.outcome}"
                    shared.cv.notify_all()
            case _:
                pass

    def _doubted(self, event: JobDoubted) -> None:
        """Somebody holds other weights for a step that a sole worker committed: whoever has that step gives up."""
        shared = self.shared
        if event.run == self.context.run and event.worker != self.context.worker and shared.step > event.step:
            hint = "nothing tells which of two is right: the run goes back to its last checkpoint"
            shared.fail(Diverged(f"{event.worker} says: {event.reason}", hint=hint))

    def _beat(self) -> None:
        if self._bus is not None:
            self._bus.beat(self.context.job, self._gauge.pulse(self.shared, self.course))

    # ------------------------------------------------------------------------------------------- restore

    def _restorable(self) -> int:
        """Steps in the newest checkpoint of this run (to resume: of the job) that this worker can see, or -1."""
        context = self.context
        if not context.checkpoint_dir:
            return -1
        run = "" if context.resume else context.run
        for listed in list_manifests(Path(context.checkpoint_dir), context.job):
            if not listed.foreign and listed.manifest is not None and (not run or listed.manifest.run == run):
                return listed.manifest.step
        return -1

    def _restore(self) -> None:
        """Nobody has the run's state: take the newest checkpoint that verifies, or what this worker was built with."""
        context, shared = self.context, self.shared
        found: restore.Restored | None = None
        skipped: tuple[str, ...] = ()
        if context.checkpoint_dir:
            run = "" if context.resume else context.run
            found, skipped = restore.newest_state(Path(context.checkpoint_dir), context.job, run=run)
        if found is None and (self.position > 0 or shared.weights.spoilt):
            raise StateError(
                "nobody has the state of the run any more, and this worker's weights are not those that it began with",
                hint="it is started anew, and the run begins again; take checkpoints to lose less",
            )
        step = chain = 0
        if found is not None:
            manifest = found.manifest
            if manifest.seed != self.course.seed or manifest.step > self.course.steps:
                raise CheckpointError(
                    f"checkpoint {manifest.checkpoint} is of another course: seed {manifest.seed}, "
                    f"step {manifest.step}; here seed {self.course.seed}, {self.course.steps} steps",
                    hint="resume with the script and flags of the run that wrote it",
                )
            state.load(self._tracked, found.layout, found.memory)
            self._flat.commit_buffers()
            step, chain = manifest.step, manifest.chain
        if found is not None or shared.generation > 1:
            self._outlet.post(
                CheckpointRestored(
                    run=context.run,
                    checkpoint=found.manifest.checkpoint if found is not None else "",
                    step=step,
                    worker=context.worker,
                    generation=shared.generation,
                    chain=chain,
                    skipped=skipped,
                )
            )
        self.position, self.chain = step, chain
        shared.restored(step, chain)


def drain_soon(run: Run, reason: str) -> None:
    """Ask the run to leave, from a signal handler: a thread of its own takes the locks."""
    threading.Thread(target=run.leave, args=(reason,), name="drain", daemon=True).start()


def _alone(context: WorkerContext) -> WorldChanged:
    me = Member(worker=context.worker, incarnation=context.incarnation, node=context.node, pid=os.getpid(), address="")
    return WorldChanged(
        generation=1, run=context.run, status="running", members=(me,), reason="no launcher: a world of one"
    )
