"""The main thread's side of a run: the loop of the script, and in it what is to be done next.

One `Run` a session, made by `ring.steps(...)`. What it is told to do comes from `Exchange.take`; `Slots` has slots
computed, `Replica` is the state that results are applied to, `Hearing` (bus thread) what the job says.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import torch

from reknit.core import log
from reknit.core.bus_thread import BusThread
from reknit.core.context import WorkerContext
from reknit.core.errors import UsageError
from reknit.core.events import (
    Member,
    Terms,
    WorkerFinished,
    WorkerLeaving,
    WorkerRegistered,
    WorldChanged,
)
from reknit.core.order import Course

from . import canary, numerics
from .alarm import Alarm
from .arrivals import Arrivals
from .batches import Batches, Collate
from .board import Alone, Board, OnTheLog
from .chaos import Chaos
from .engine import Engine
from .evaluation import Evaluations, Measure
from .exchange import Exchange
from .feed import Feeder
from .flat import Flat
from .hearing import AREAS, Hearing
from .identity import Identity
from .overdue import end_process
from .overlap import Overlap
from .ports import Outlet, Span
from .pulse import Gauge
from .replica import Replica
from .ring.listener import Listener
from .slots import Slots
from .standpoint import Standpoint
from .step import Step
from .teaching import Teacher
from .tracked import Tracked
from .transport.choice import Choice
from .work import Apply, Begin, ComeBack, Compute, Copy, Done, Leave, Load, Rehearse, Restore, Result, Verify

_BEAT = 0.25
_HAND_OVER = 5.0
"""Seconds to send and store what was begun when the script leaves the loop early."""
_WRITING = 60.0
"""Seconds to finish checkpoint files at the end of a run."""


_log = log.get("overlap")


def _say(text: str) -> None:
    print(f"reknit: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the worker's log


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
        replica: the run's state as this worker has it.
        slots: has slots computed, and knows where the script is.
        hearing: what was heard of the job.
        current: the step that the script was given last, None before the first and after the last.
        stage: the script is `before` the loop over its micro-batches, `after` it, or at the `end`; "" before the first.
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
        self.stage = ""
        self.current: Step | None = None
        self._tracked = tracked
        self._batches = batches
        self._bus = bus
        self._outlet = outlet
        self._gauge = Gauge()
        self._alarm = Alarm(context.worker, context.run, outlet.post)
        self._done = 0
        self._over = False
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
        self._arrivals = Arrivals(
            self._flat,
            self.shared,
            Overlap(context.overlap if bus and self._sums.bounds is None else "off"),
            _say if context.overlap == "on" else _log.debug,  # who did not ask for it need not read of it
        )
        self._chaos = Chaos(context.worker, tracked, allowed=context.chaos)
        self.replica = Replica(
            context,
            self.course,
            tracked,
            self.shared,
            flat=self._flat,
            sums=self._sums,
            chaos=self._chaos,
            outlet=outlet,
        )
        self.slots = Slots(
            context,
            batches,
            self.shared,
            flat=self._flat,
            arrivals=self._arrivals,
            watch=self.replica.watch,
            chaos=self._chaos,
            outlet=outlet,
        )
        self.shared.samples = lambda step, slot: tuple(self.course.slot_samples(step, slot).tolist())
        self._feeder = Feeder(self.shared)
        self._teacher = Teacher(self.shared, self.replica.saving.ready)
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
            saves=bool(context.checkpoint_dir) and bus is not None,
        )
        self.evaluations = Evaluations(
            run=context.run,
            worker=context.worker,
            seed=self.course.seed,
            tracked=tracked,
            run_is=Standpoint(self),
            board=self._board,
        )
        self._engine.caller.fresh_digest = self.replica.digest() or 1
        self._engine.caller.restorable = self.replica.origin.restorable()
        self.hearing = Hearing(context, self.shared, self._engine, self.replica.saving, self._chaos)

    def start(self) -> None:
        """Start the engine, and register with the job (or be a world of one)."""
        self._engine.start()
        if self._bus is None:
            self._engine.on_world(_alone(self.context))
            return
        self._bus.follow(self.hearing.hear, job=self.context.job, areas=AREAS, from_seq=0)
        self._bus.every(_BEAT, self._beat)
        self._register(self.shared.incarnation, -1)
        last = self._bus.call(lambda bus: bus.last_world(self.context.job))
        if last is not None:  # the run goes on: we are a candidate
            self.hearing.hear(last)

    def close(self, *, failed: bool) -> None:
        """End all threads and sockets; a checkpoint that is being written is finished unless the script failed."""
        if not failed and not self._over:
            self._stop_early()
        self._engine.close()
        self._arrivals.close()
        self._teacher.close()
        if self._listener is not None:
            self._listener.close()
        self.replica.saving.close(0.0 if failed else _WRITING)

    # ------------------------------------------------------------------------------------------ the loop

    def steps(self) -> Iterator[Step]:
        """See `Ring.steps`."""
        shared = self.shared
        entered = self._take(None)
        if not isinstance(entered, Begin):
            raise AssertionError(f"a run begins with {entered}")  # noqa: TRY004 - a bug here, not a wrong argument
        slots = self.slots
        slots.step = entered.step
        while slots.step < shared.total:
            self.replica.begin(slots.step)
            step = self.current = Step(self, slots.step)
            self.stage = "before"
            yield step
            if not step.complete:
                raise UsageError(
                    f"the loop over the micro-batches of step {step.index} was left early",
                    hint="iterate `for batch in step:` to its end before the optimizer's step",
                )
            slots.step = step.index + 1
        self.current = None
        self._finish()
        self.stage = "end"

    def work_on(self, step: Step) -> Iterator[Any]:
        """Compute slots as they are handed out until the step's result is there; yields micro-batches."""
        while not step.complete:
            match self._take(step):
                case Compute(number, slot, orphan):
                    began = time.monotonic()
                    yield self.slots.begin(step, number, slot)
                    self.slots.end(step, number, slot)
                    seconds = time.monotonic() - began
                    self._gauge.slot_took(seconds)
                    if orphan:
                        self._outlet.span(
                            Span("step.recompute", seconds, seconds, self._engine.trace, {"step": number, "slot": slot})
                        )
                case Rehearse(number, slot):
                    yield self.slots.rehearse(step, number, slot)
                    self.slots.end_rehearsal(step, number)
                case Apply(number, result):
                    self._apply(step, number, result)
                case Begin(number):
                    step.index = number
                case Done():
                    raise AssertionError("the run is over in the middle of a step")
                case never:
                    assert_never(never)

    def _apply(self, step: Step, number: int, result: Result) -> None:
        first, end = self.course.span(number)
        summary = self.replica.apply(number, result)
        self._batches.settle(number)
        self._arrivals.completed(number, result.of.generation)
        self._gauge.committed(end - first, summary.loss)
        self._alarm.committed(result.of, summary.loss)
        self._done = number + 1
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
                        self.replica.left_behind()
                    self._engine.come_back()
                case Restore():
                    self.replica.restore()
                case Load(copy):
                    self.replica.load(copy, self._engine.ledger)
                    if step is not None:
                        self.replica.begin(copy.step)
                    return Begin(copy.step)
                case Copy(number):
                    self.replica.copy_for_learners(number, self._engine.ledger)
                case Verify(number):
                    self.replica.verify(number)
                case Compute() | Rehearse() | Apply() | Begin() | Done() as work:
                    return work
                case never:
                    assert_never(never)

    def _finish(self) -> None:
        """After the last step: serve learners until everybody has the last result, then say so."""
        shared = self.shared
        stopped = shared.total < self.course.steps
        self.replica.begin(self.slots.step)
        shared.enter("finish")
        while not isinstance(work := self._take(None), Done):
            if not isinstance(work, Begin):  # left out and taken in again meanwhile: the state received is the last
                raise AssertionError(f"{work} after the last step")  # noqa: TRY004 - a bug here
            self.replica.begin(work.step)
        self.replica.saving.wait()
        self.replica.saving.compared(shared.total, shared.weights.of(shared.total), shared.weights.state)
        self.replica.saving.close(_WRITING)
        self._say_finished(shared.total)
        if stopped:
            raise Left("the run was stopped")

    def _stop_early(self) -> None:
        """The script left the loop before its last step, and well: it has had enough (early stopping)."""
        self._engine.parting.hand_over(_HAND_OVER)
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
                state_hash=f"{self.replica.digest():016x}",
            )
        )

    def evaluate(
        self, dataset: Any, measure: Measure, *, micro_batch: int, name: str, collate: Collate | None
    ) -> dict[str, float]:
        """See `Ring.evaluate`."""
        try:
            return self.evaluations.evaluate(dataset, measure, micro_batch=micro_batch, name=name, collate=collate)
        finally:
            self.slots.samples = ()
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
                step=self.slots.step,
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

    def _beat(self) -> None:
        if self._bus is not None:
            self._bus.beat(self.context.job, self._gauge.pulse(self.shared, self.course))


def drain_soon(run: Run, reason: str) -> None:
    """Ask the run to leave, from a signal handler: a thread of its own takes the locks."""
    threading.Thread(target=run.leave, args=(reason,), name="drain", daemon=True).start()


def _alone(context: WorkerContext) -> WorldChanged:
    me = Member(worker=context.worker, incarnation=context.incarnation, node=context.node, pid=os.getpid(), address="")
    return WorldChanged(
        generation=1, run=context.run, status="running", members=(me,), reason="no launcher: a world of one"
    )
