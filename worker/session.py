"""A script's session: `join()` gives a `Ring`; one session a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import torch

from reknit.core import telemetry
from reknit.core.bus_thread import BusThread
from reknit.core.context import WORKER, Endpoint, WorkerContext, from_env
from reknit.core.errors import StateError, UsageError
from reknit.core.events import Event
from reknit.core.order import Course

from . import keepsake, live, norm
from .batches import Batches, Collate, length_of
from .failure import failure, is_the_scripts
from .outlet import BusOutlet
from .ports import Nowhere, Outlet
from .run import Left, Run, drain_soon
from .step import Step
from .tracked import Tracked

_FLUSH = 5.0
_BROKER_PATIENCE = 600.0
"""Seconds that a worker which starts while the broker is away waits for it: those that train go on meanwhile, and
nobody could let it in."""


def _alone() -> WorkerContext:
    """The context of a world of one; without a launcher nobody has read the settings."""
    said = os.environ.get("REKNIT_VERIFY_WEIGHTS", "").strip().lower()
    return WorkerContext(
        endpoint=Endpoint(url=""),
        job="solo",
        run="solo",
        node="solo",
        worker="solo",
        incarnation=1,
        verify_weights=said not in {"0", "false", "no", "off"},
        transport=os.environ.get("REKNIT_TRANSPORT", "").strip() or "tcp",
    )


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
        well = error is None or (isinstance(error, SystemExit) and error.code in {None, 0})
        if error is not None and is_the_scripts(error):
            # before the door is shut: else all that the others see is that nobody listens there any more
            self._session.failed(error)
        self._session.close(failed=not well)

    def track(self, **objects: Any) -> None:
        """Name what belongs to the state: joiners receive it, checkpoints hold it.

        Args:
            objects: modules, and anything with `state_dict` and `load_state_dict` (optimizers, schedulers, …). The
                gradients of all parameters of the modules that require one are reduced.

        Raises:
            StateError: an object has no state that can travel, or its name is taken.
            UsageError: `steps` was called already.
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
        samples = length_of(dataset)
        slots = self._session.context.slots or slots
        return self._session.run(Batches(dataset, Course(samples, micro_batch, slots, epochs, seed), collate))

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        *,
        parameters: Iterable[torch.nn.Parameter] | None = None,
        error_if_nonfinite: bool = False,
    ) -> float:
        """Clip the gradients by their norm: after the loop over the micro-batches, before `optimizer.step()`.

        As `torch.nn.utils.clip_grad_norm_`, but the bits do not depend on the number of threads.

        Args:
            max_norm: the norm is at most this afterwards.
            norm_type: 2, 1, any other p > 0, or infinity.
            parameters: whose gradients; all that are trained by default.
            error_if_nonfinite: raise if the norm is NaN or Inf.

        Returns:
            The norm before clipping, the same on every worker.

        Raises:
            UsageError: no step's gradient is in place; `norm_type` is not above 0.
            NotFinite: asked for, and the norm is not finite.
        """
        run = self._session.running
        if run is None:
            raise UsageError(
                "there is no gradient to clip", hint="call ring.clip_grad_norm_ in the loop over the steps"
            )
        gradients = run.gradients(None if parameters is None else list(parameters))
        return norm.clip(gradients, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite)

    def evaluate(
        self,
        dataset: Any,
        measure: Callable[[Any], Mapping[str, Any]],
        *,
        micro_batch: int,
        name: str = "",
        collate: Collate | None = None,
    ) -> dict[str, float]:
        """Measure a dataset with all workers together: the same result, bit for bit, for any number of them.

        Every worker's script must come by, between two steps or after the last one. The dataset is cut into
        micro-batches, which the workers share; what a worker that dies leaves is measured by the others. Buffers of
        tracked modules and the states of random generators are as before afterwards; `model.eval()` is yours to call.

        Args:
            dataset: map-style; equal on all workers.
            measure: batch -> name -> mean over the micro-batch (a number, or a tensor with one element), or
                (sum, count). Called without gradients, and with random numbers of the micro-batch's own.
            micro_batch: samples a micro-batch.
            name: shown in events; tells evaluations at one place apart (else they are counted).
            collate: list of samples to batch.

        Returns:
            Means over the dataset, by name; a metric counts in the micro-batches that gave it.

        Raises:
            UsageError: called before the first step or inside the loop over micro-batches; wrong numbers; a metric that
                is none.
        """
        run = self._session.running
        if run is None:
            raise UsageError("ring.evaluate was called before ring.steps", hint="call it in the loop over the steps")
        return run.evaluate(dataset, measure, micro_batch=micro_batch, name=name, collate=collate)

    def save(self, value: Any, path: str | os.PathLike[str]) -> bool:
        """Write a file with `torch.save`, on the lead only, whole or not at all; the others do nothing.

        A process that dies while it writes leaves the file that was there before. If the lead dies before it writes,
        nobody writes this time: the next call does. What must survive without a gap is a checkpoint's business.

        Args:
            value: as `torch.save` takes it.
            path: the file; its directory must exist.

        Returns:
            True on the worker that wrote.

        Raises:
            UsageError: called before the first step: nobody is the lead yet.
            OSError: it cannot be written.
        """
        if not self._session.members:
            raise UsageError(
                "ring.save was called before the first step: nobody is the lead yet",
                hint="call it in the loop over the steps, or after it",
            )
        if not self.lead:
            return False
        keepsake.save(value, path)
        return True

    @property
    def id(self) -> str:
        """This worker's id; "solo" without a launcher."""
        return self._session.context.worker

    @property
    def size(self) -> int:
        """Workers in the ring now; 0 before the first world."""
        return len(self._session.members)

    @property
    def generation(self) -> int:
        """Number of the present world; 0 before the first."""
        run = self._session.running
        return run.shared.generation if run is not None else 0

    @property
    def lead(self) -> bool:
        """True on exactly one worker of a world: the one to print and to save. After the run, of its last world.

        Before the first step it is false on all.
        """
        return self._session.members[:1] == (self.id,)


class Session:
    """What `join` makes; the process's `live.current()`.

    Attributes:
        context: what the agent said, or that of a world of one.
        tracked: the tracked objects.
        running: the run, from `ring.steps` on.
    """

    def __init__(self, context: WorkerContext | None) -> None:
        self.context = context or _alone()
        self.tracked = Tracked()
        self.running: Run | None = None
        self._leaving = ""
        self._told: BaseException | None = None
        self._bus: BusThread | None = None
        self._outlet: Outlet = Nowhere()
        if context is not None:
            telemetry.setup("reknit-worker")
            self._bus = BusThread(context.endpoint, context.worker)
            self._bus.start(timeout=_BROKER_PATIENCE)
            self._outlet = BusOutlet(self._bus, context.job, context.worker)

    @property
    def members(self) -> tuple[str, ...]:
        """Workers of the newest running world, in ring order."""
        if self.running is None:
            return ()
        return self.running.hearing.members if self._bus is not None else (self.context.worker,)

    @property
    def incarnation(self) -> int:
        """Incarnation of this worker, for failure reports."""
        return self.running.shared.incarnation if self.running is not None else self.context.incarnation

    @property
    def step(self) -> int:
        """Step that the script is at, -1 before the first."""
        return self.running.slots.step if self.running is not None else -1

    @property
    def slot(self) -> int:
        """Slot that is being computed, -1 between two."""
        return self.running.slots.slot if self.running is not None else -1

    @property
    def samples(self) -> tuple[int, ...]:
        """Sample ids of the slot that is being computed."""
        return self.running.slots.samples if self.running is not None else ()

    def track(self, **objects: Any) -> None:
        """See `Ring.track`."""
        if self.running is not None:
            raise UsageError("ring.track must come before ring.steps", hint="track everything first, then run steps")
        self.tracked.add(**objects)

    def run(self, batches: Batches) -> Iterator[Step]:
        """See `Ring.steps`."""
        if self.running is not None:
            raise UsageError(
                "ring.steps was called a second time", hint="one run of steps a join: put all epochs into one call"
            )
        if not self.tracked.modules:
            raise UsageError("nothing to train is tracked", hint="call ring.track(model=model, optimizer=optimizer)")
        self.running = Run(self.context, self.tracked, batches, bus=self._bus, outlet=self._outlet)
        self.running.start()
        if self._leaving:
            self.running.leave(self._leaving)
        return self.running.steps()

    @property
    def bus(self) -> BusThread | None:
        """The connection, for this process's last words; None without a launcher."""
        return self._bus

    def post(self, event: Event) -> None:
        """Publish an event, now or when the broker is back."""
        self._outlet.post(event)

    def failed(self, error: BaseException) -> None:
        """Say that the script raised, once; it goes on only to its end."""
        if self._told is not error:
            self._told = error
            context = self.context
            self.post(
                failure(
                    error,
                    worker=context.worker,
                    incarnation=self.incarnation,
                    step=self.step,
                    slot=self.slot,
                    samples=self.samples,
                )
            )

    def drain(self, reason: str) -> None:
        """Leave at the next step boundary; may be called in a signal handler.

        Raises:
            SystemExit: the script has not begun its steps: there is nothing to finish.
        """
        self._leaving = reason or "asked to leave"
        if self.running is None:
            raise Left(self._leaving)
        drain_soon(self.running, self._leaving)

    def close(self, *, failed: bool) -> None:
        """End the session. After a failure a connection stays, so that the failure can be reported."""
        if self.running is not None:
            self.running.close(failed=failed)
        if isinstance(self._outlet, BusOutlet):
            self._outlet.close()
        if failed and self._bus is not None:
            return
        live.become(None)
        if self._bus is not None:
            self._bus.close(_FLUSH)
            telemetry.flush()


def join() -> Ring:
    """Join the ring that `reknit run` has prepared; without a launcher, be a world of one.

    Raises:
        StateError: this process has a session already.
        ControlPlaneUnreachable: the broker does not answer.
    """
    if live.current() is not None:
        raise StateError("this process has joined already", hint="one reknit.join() at a time in a process")
    session = Session(from_env(WORKER, WorkerContext) if os.environ.get(WORKER) else None)
    live.become(session)
    return Ring(session)
