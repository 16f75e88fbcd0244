"""A script's session in the ring: `join()` gives a `Ring`, its `steps()` run the main thread's side of `Exchange`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reknit.core import telemetry
from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.context import WORKER, WorkerContext, from_env
from reknit.core.errors import CheckpointError, RefusedByJob, StateError, UsageError
from reknit.core.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRequested,
    CheckpointRestored,
    Event,
    JobFinished,
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

from . import live, numerics, restore, state
from .batches import Batches, Collate, length_of
from .engine import Engine, Identity
from .exchange import Apply, Begin, Compute, Copy, Done, Exchange, Leave, Load, Restore, Result
from .flat import Flat
from .learning import Teacher
from .outlet import BusOutlet
from .ports import Nowhere, Outlet
from .pulse import Gauge
from .ring.control import Plan
from .ring.listener import Listener
from .saving import Saving
from .step import Step
from .tracked import Tracked

_AREAS = ("world", "shards", "checkpoint", "job")
_WRITING = 60.0
"""Seconds to finish checkpoint files at the end of a run."""


class Left(SystemExit):
    """This worker was drained or its run stopped: the process ends well, without the script's code after the loop."""

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason


class Ring:
    """A worker's place in the ring, as the script holds it. Made by `reknit.join()`, used as a context manager."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Self:
        """Enter the session."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave: well after the last step, at once on an exception (which goes on to the caller)."""
        self._session.close(failed=error is not None and not isinstance(error, SystemExit))

    def track(self, **objects: Any) -> None:
        """Name what belongs to the state: joiners receive it, checkpoints hold it.

        Args:
            objects: modules, and anything with `state_dict` and `load_state_dict` (optimizers, schedulers, …). Gradients
                of all parameters of the modules are reduced.

        Raises:
            StateError: an object has no state that can travel, or its name is taken.
        """
        self._session.track(**objects)

    def steps(
        self,
        dataset: Any,
        *,
        micro_batch: int,
        slots: int = 8,
        epochs: int = 1,
        seed: int = 0,
        collate: Collate | None = None,
    ) -> Iterator[Step]:
        """Run over the dataset: one `Step` after the other, the same on every worker.

        Args:
            dataset: map-style (`__len__`, `__getitem__`); equal on all workers.
            micro_batch: samples a slot.
            slots: slots a step; the global batch is `slots * micro_batch` however many workers there are.
                `reknit run --slots` overrides it.
            epochs: passes over the dataset; each sample once an epoch, the last step of an epoch may be smaller.
            seed: root of the sample order and of each slot's random numbers.
            collate: list of samples to batch.

        Raises:
            UsageError: a number is below 1, the dataset is empty or has no length, nothing is tracked.
            RefusedByJob: the job does not let this worker in; the text names the first difference.
        """
        return self._session.run(dataset, micro_batch, slots, epochs, seed, collate)

    @property
    def id(self) -> str:
        """This worker's id; "solo" without a launcher."""
        return self._session.context.worker if self._session.context else "solo"

    @property
    def size(self) -> int:
        """Workers in the ring now."""
        return self._session.size

    @property
    def generation(self) -> int:
        """Number of the present world."""
        return self._session.generation

    @property
    def lead(self) -> bool:
        """True on exactly one worker of a world: the one to print and to save. After the run, of its last world."""
        return self._session.lead


class Session:
    """One session a process.

    Attributes:
        context: what the agent said; None without a launcher.
        step, slot, samples: where the script is, for failure reports.
    """

    def __init__(self, context: WorkerContext | None) -> None:
        self.context = context
        self.tracked = Tracked()
        self.step = -1
        self.slot = -1
        self.samples: tuple[int, ...] = ()
        self.course = Course(1, 1, 1, 1, 0)
        self.bus: BusThread | None = None
        self._outlet: Outlet = Nowhere()
        self._shared: Exchange | None = None
        self._engine: Engine | None = None
        self._listener: Listener | None = None
        self._teacher: Teacher | None = None
        self._saving: Saving | None = None
        self._flat: Flat | None = None
        self._batches: Batches | None = None
        self._gauge = Gauge()
        self._learned_at: float | None = None
        self._leaving = ""
        self._used = False
        self._last_members: tuple[str, ...] = ()
        if context is not None:
            telemetry.setup("reknit-worker")
            self.bus = BusThread(context.endpoint, context.worker)
            self.bus.start()
            self._outlet = BusOutlet(self.bus, context.job, context.worker)

    # ------------------------------------------------------------------------------------------- what it is

    @property
    def incarnation(self) -> int:
        """Incarnation of this worker, for failure reports."""
        if self._shared is not None:
            return self._shared.incarnation
        return self.context.incarnation if self.context else 1

    @property
    def generation(self) -> int:
        """Generation being served."""
        return self._shared.generation if self._shared is not None else 0

    @property
    def size(self) -> int:
        """Workers in the ring."""
        return max(1, len(self._last_members))

    @property
    def lead(self) -> bool:
        """True on the first worker of the ring."""
        return self.context is None or self._last_members[:1] == (self.context.worker,)

    def track(self, **objects: Any) -> None:
        """See `Ring.track`."""
        if self._shared is not None:
            raise UsageError("ring.track must come before ring.steps", hint="track everything first, then run steps")
        self.tracked.add(**objects)

    # ------------------------------------------------------------------------------------------- the loop

    def run(
        self, dataset: Any, micro_batch: int, slots: int, epochs: int, seed: int, collate: Collate | None
    ) -> Iterator[Step]:
        """See `Ring.steps`."""
        if self._used:
            raise UsageError(
                "ring.steps was called a second time", hint="one run of steps a join: put all epochs into one call"
            )
        self._used = True
        if not self.tracked.modules:
            raise UsageError("nothing to train is tracked", hint="call ring.track(model=model, optimizer=optimizer)")
        if self.context is not None and self.context.slots:
            slots = self.context.slots
        self.course = Course(length_of(dataset), micro_batch, slots, epochs, seed)
        self._batches = Batches(dataset, self.course, collate)
        self._flat = Flat(self.tracked, cached=slots + 8)
        self._open()
        return self._steps()

    def _steps(self) -> Iterator[Step]:
        shared = self._shared
        assert shared is not None
        self.step = self._enter()
        while self.step < shared.total:
            self._begin(self.step)
            step = Step(self, self.step)
            yield step
            if not step.complete:
                raise UsageError(
                    f"the loop over the micro-batches of step {step.index} was left early",
                    hint="iterate `for batch in step:` to its end before the optimizer's step",
                )
            self.step = step.index + 1
        self._finish()

    def work_on(self, step: Step) -> Iterator[Any]:
        """Main thread's side of a step: compute slots as they are handed out until the result is there."""
        shared, flat, batches = self._shared, self._flat, self._batches
        assert shared is not None and flat is not None and batches is not None
        if step.complete:
            return
        while True:
            match self._take(step):
                case Compute(number, slot):
                    flat.begin_slot()
                    self.step, self.slot, self.samples = number, slot, batches.samples(number, slot)
                    began = time.monotonic()
                    yield batches.fetch(number, slot)
                    buffer = shared.buffer()
                    flat.collect(
                        buffer,
                        weight=len(self.samples) / self.course.micro_batch,
                        loss=step.take_slot_loss(),
                        samples=len(self.samples),
                    )
                    self._gauge.slot_took(time.monotonic() - began)
                    shared.put(number, slot, buffer)
                    self.slot, self.samples = -1, ()
                case Apply(number, result):
                    self._apply(step, number, result)
                    return

    def _apply(self, step: Step, number: int, result: Result) -> None:
        assert self._flat is not None and self._saving is not None and self._batches is not None
        first, end = self.course.span(number)
        self._saving.wait()
        summary = self._flat.apply(result.buffer, (end - first) / self.course.micro_batch)
        self._batches.settle(number)
        self._saving.agreed(result.of)
        self._gauge.committed(number, end - first, summary.loss, len(result.of.owners))
        step.loss = summary.loss
        step.generation = result.of.generation
        step.complete = True
        if self._shared is not None:
            self._shared.enter("user")

    def _take(self, step: Step | None) -> Compute | Apply | Begin | Done:
        """Next work that is not the session's own business; copies, loads and restores are done on the way."""
        shared = self._shared
        assert shared is not None and self._saving is not None and self._flat is not None
        while True:
            match shared.take():
                case Leave(reason):
                    raise Left(reason)
                case Restore():
                    self._restore()
                case Load(copy):
                    self._saving.wait()
                    state.load(self.tracked, Layout.decode(copy.layout), copy.memory)
                    self._flat.commit_buffers()
                    assert self._engine is not None
                    self._engine.ledger.take_over(copy.ledger)
                    self._learned_at = time.monotonic()
                    shared.loaded(copy.step)
                    if step is not None:
                        step.index = copy.step
                        self._begin(copy.step)
                    else:
                        return Begin(copy.step)
                case Copy(number):
                    self._flat.restore_buffers()
                    assert self._engine is not None
                    ledger = self._engine.ledger.export()
                    self._saving.copy_for_learners(number, self._chain_before(number), shared.generation, ledger)
                case Compute() | Apply() | Begin() | Done() as work:
                    return work

    def _chain_before(self, step: int) -> int:
        shared = self._shared
        assert shared is not None
        with shared.cv:
            before = shared.results.get(step - 1)
            return before.of.chain if before is not None else shared.chain

    def _enter(self) -> int:
        work = self._take(None)
        assert isinstance(work, Begin)
        return work.step

    def _begin(self, step: int) -> None:
        shared = self._shared
        assert shared is not None and self._saving is not None
        self._saving.begin(step)
        shared.begin(step)
        if self._learned_at is not None and step >= shared.step:
            seconds, self._learned_at = time.monotonic() - self._learned_at, None
            self.post(
                WorkerCaughtUp(
                    worker=self._worker,
                    incarnation=shared.incarnation,
                    generation=shared.generation,
                    step=step,
                    seconds=seconds,
                )
            )

    def _finish(self) -> None:
        """After the last step: serve learners and wait until everybody has the last result."""
        shared = self._shared
        assert shared is not None and self._saving is not None
        stopped = shared.total < self.course.steps
        self._begin(self.step)
        shared.enter("finish")
        while not isinstance(work := self._take(None), Done):
            assert isinstance(work, Begin)  # left out and taken in again meanwhile: the state received is the last one
            self._begin(work.step)
        self._saving.wait()
        self._saving.close(_WRITING)
        self.post(
            WorkerFinished(
                worker=self._worker,
                incarnation=shared.incarnation,
                generation=shared.generation,
                step=shared.total,
                state_hash=f"{state.digest(self.tracked):016x}",
            )
        )
        if stopped:
            raise Left("the run was stopped")

    # -------------------------------------------------------------------------------------- open and close

    @property
    def _worker(self) -> str:
        return self.context.worker if self.context else "solo"

    def _open(self) -> None:
        assert self._flat is not None
        context, course = self.context, self.course
        shared = Exchange(self._worker, self.incarnation, self._flat.shape, self._used_slots, course.steps)
        self._shared = shared
        directory = context.checkpoint_dir if context else ""
        self._saving = Saving(
            self._worker, context.job if context else "solo", directory, self.tracked, shared, self.post
        )
        self._teacher = Teacher(shared)
        if context is not None:
            self._listener = Listener(context.job, context.worker, context.secret, context.host, self._arrived)
        self._engine = Engine(
            Identity(
                context.job if context else "solo",
                context.run if context else "solo",
                context.node if context else "solo",
                self._worker,
                context.secret if context else "",
            ),
            shared,
            course.slots,
            self._listener,
            self._outlet,
            register=self._register,
            loss_of=lambda result: self._flat.summary(result.buffer).loss if self._flat else None,
        )
        self._engine.fresh_digest = state.digest(self.tracked) or 1
        self._engine.restorable = self._restorable()
        self._engine.start()
        if self.bus is None or context is None:
            self._engine.on_world(_alone())
            return
        self.bus.follow(self._hear, job=context.job, areas=_AREAS, from_seq=0)
        self.bus.every(0.25, self._beat)
        self._register(shared.incarnation, -1)
        if self._leaving:
            self._leave()

    def _used_slots(self, step: int) -> int:
        first, end = self.course.span(step)
        return -(-(end - first) // self.course.micro_batch)

    def _arrived(self) -> None:
        if self._teacher is not None and self._listener is not None and self._shared is not None:
            self._teacher.arrived(self._listener)
            self._shared.notify()

    def _register(self, incarnation: int, held: int) -> None:
        context, listener, bus, course = self.context, self._listener, self.bus, self.course
        assert context is not None and listener is not None and bus is not None
        self.post(
            WorkerRegistered(
                worker=context.worker,
                incarnation=incarnation,
                node=context.node,
                run=context.run,
                pid=os.getpid(),
                address=listener.address,
                terms=Terms(
                    slots=course.slots,
                    micro_batch=course.micro_batch,
                    samples=course.samples,
                    epochs=course.epochs,
                    seed=course.seed,
                    parameters=self.tracked.signature(),
                    numerics=numerics.contract(),
                ),
                has_state_of=held,
                client_id=bus.client_id,
            )
        )

    def close(self, *, failed: bool) -> None:
        """End the session. After a failure the connection stays, so that the failure can be reported."""
        if self._engine is not None:
            self._engine.close()
        if self._teacher is not None:
            self._teacher.close()
        if self._listener is not None:
            self._listener.close()
        if self._saving is not None:
            self._saving.close(0.0 if failed else _WRITING)
        if isinstance(self._outlet, BusOutlet):
            self._outlet.close()
        if failed:
            return
        live.become(None)
        if self.bus is not None:
            self.bus.close(5.0)
            telemetry.flush()

    # --------------------------------------------------------------------------------------------- the bus

    def post(self, event: Event) -> None:
        """Publish an event, now or when the broker is back."""
        self._outlet.post(event)

    def drain(self, reason: str) -> None:
        """Leave at the next step boundary. Called in a signal handler: it only starts a thread."""
        threading.Thread(target=self._drain, args=(reason,), name="drain", daemon=True).start()

    def _drain(self, reason: str) -> None:
        self._leaving = reason or "asked to leave"
        if self._shared is not None:
            self._leave()

    def _leave(self) -> None:
        shared = self._shared
        assert shared is not None
        with shared.cv:
            if shared.leaving:
                return
            shared.leaving = self._leaving
            if shared.generation == 0:
                shared.left = self._leaving
            shared.cv.notify_all()
        self.post(WorkerLeaving(worker=self._worker, incarnation=shared.incarnation, reason=self._leaving))

    def _hear(self, received: Received) -> None:
        event, engine, shared, saving = received.event, self._engine, self._shared, self._saving
        if engine is None or shared is None or saving is None:
            return
        match event:
            case WorldChanged():
                if event.status == "running":
                    self._last_members = tuple(m.worker for m in event.members)
                engine.on_world(event, received.trace)
            case ShardsPlanned():
                engine.on_plan(Plan(event.generation, event.version, event.ranges))
            case CheckpointRequested() | CheckpointCommitted() | CheckpointFailed():
                saving.hear(event)
            case WorkerRefused():
                if (event.worker, event.incarnation) == (self._worker, shared.incarnation):
                    shared.fail(RefusedByJob(event.reason))
            case JobFinished():
                if self.context is not None and event.run == self.context.run and event.outcome != "completed":
                    with shared.cv:
                        shared.left = shared.left or f"the run is over: {event.outcome}"
                        shared.cv.notify_all()
            case _:
                pass

    def _beat(self) -> None:
        shared, bus, context = self._shared, self.bus, self.context
        if shared is None or bus is None or context is None:
            return
        bus.beat(context.job, self._gauge.pulse(shared, self.course))

    # ------------------------------------------------------------------------------------------ checkpoints

    def _restorable(self) -> int:
        """Steps in the newest checkpoint of this run (or job, to resume) that this worker can see, unverified; or -1."""
        context = self.context
        if context is None or not context.checkpoint_dir:
            return -1
        run = "" if context.resume else context.run
        for listed in list_manifests(Path(context.checkpoint_dir), context.job):
            if not listed.foreign and listed.manifest is not None and (not run or listed.manifest.run == run):
                return listed.manifest.step
        return -1

    def _restore(self) -> None:
        """Nobody has the run's state: take the newest checkpoint that verifies, or what this worker was built with."""
        context, shared = self.context, self._shared
        assert shared is not None and self._flat is not None
        found: restore.Restored | None = None
        skipped: tuple[str, ...] = ()
        if context is not None and context.checkpoint_dir:
            run = "" if context.resume else context.run
            found, skipped = restore.newest_state(Path(context.checkpoint_dir), context.job, run=run)
        step = chain = 0
        if found is not None:
            manifest = found.manifest
            if manifest.seed != self.course.seed or manifest.step > self.course.steps:
                raise CheckpointError(
                    f"checkpoint {manifest.checkpoint} is of another course: seed {manifest.seed}, step {manifest.step}; "
                    f"here seed {self.course.seed}, {self.course.steps} steps",
                    hint="resume with the script and flags of the run that wrote it",
                )
            state.load(self.tracked, found.layout, found.memory)
            self._flat.commit_buffers()
            step, chain = manifest.step, manifest.chain
        if context is not None and (found is not None or shared.generation > 1):
            self.post(
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
        shared.restored(step, chain)


def join() -> Ring:
    """Join the ring that `reknit run` has prepared; without a launcher, be a world of one.

    Raises:
        StateError: this process has a session already.
        ControlPlaneUnreachable: the broker does not answer.
    """
    if live.current() is not None:
        raise StateError("this process has joined already", hint="one reknit.join() at a time in a process")
    context = from_env(WORKER, WorkerContext) if os.environ.get(WORKER) else None
    session = Session(context)
    live.become(session)
    return Ring(session)


def _alone() -> WorldChanged:
    me = Member(worker="solo", incarnation=1, node="solo", pid=os.getpid(), address="")
    return WorldChanged(generation=1, run="solo", status="running", members=(me,), reason="no launcher: a world of one")
