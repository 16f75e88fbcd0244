"""One slot after the other on the main thread: handed to the script, its gradient collected and handed in.

batch = slots.begin(step, number, slot)    … the script computes …    slots.end(step, number, slot)
batch = slots.rehearse(step, number, slot)    … the same …    slots.end_rehearsal(step, number)
"""

from __future__ import annotations

import math
from typing import Any

from reknit.core.context import WorkerContext
from reknit.core.errors import RefusedByJob
from reknit.core.events import JobInexact, WorkerRefused

from .arrivals import Arrivals
from .batches import Batches
from .chaos import Chaos
from .digest import Watch
from .exchange import Exchange
from .flat import Flat
from .ports import Outlet
from .rehearsal import gradient_digest
from .ring.control import SlotNote
from .step import Step


class Slots:
    """Has slots computed by the script.

    Args:
        context: who we are.
        batches: where micro-batches come from.
        shared: where computed slots go.
        flat: collects gradients, buffers and loss of a slot into one buffer.
        arrivals: collects gradients while backward runs.
        watch: notices weights that change while a step is computed with them.
        chaos: faults on purpose.
        outlet: where events go.

    Attributes:
        step, slot, samples: where the script is, for failure reports; slot -1 between two micro-batches.
    """

    def __init__(
        self,
        context: WorkerContext,
        batches: Batches,
        shared: Exchange,
        *,
        flat: Flat,
        arrivals: Arrivals,
        watch: Watch,
        chaos: Chaos,
        outlet: Outlet,
    ) -> None:
        self.step = -1
        self.slot = -1
        self.samples: tuple[int, ...] = ()
        self._context = context
        self._batches = batches
        self._micro_batch = batches.course.micro_batch
        self._shared = shared
        self._flat = flat
        self._arrivals = arrivals
        self._watch = watch
        self._chaos = chaos
        self._outlet = outlet

    def begin(self, step: Step, number: int, slot: int) -> Any:
        """A slot of ours is computed now; returns its micro-batch."""
        self._flat.begin_slot()
        if self._shared.weights.verify:
            self._watch.begin(number, self._shared.weights.witnesses)
        self._chaos.at(number)
        batch = self._hand_out(step, number, slot)
        self._arrivals.begin(number, slot, full=len(self.samples) == self._micro_batch)
        return batch

    def end(self, step: Step, number: int, slot: int) -> None:
        """The script is done with the slot."""
        count = len(self.samples)
        loss, metrics = step.end_slot()
        self._flat.check_unchanged()
        begun, copied = self._arrivals.end()
        buffer = self._shared.pool.take() if begun is None else begun
        self._flat.collect(buffer, weight=count / self._micro_batch, loss=loss, samples=count, copied=copied)
        bad = self.samples if loss is not None and not math.isfinite(loss) else ()
        sums = {name: (value * count, float(count)) for name, value in metrics.items()}
        proof = gradient_digest(self._flat.shape, buffer) if slot == self._shared.proof_slot(number) else 0
        note = SlotNote(slot, sums, bad, proof)
        self._shared.put(number, slot, buffer, note if sums or bad or proof else None)
        self._arrivals.handed_in()
        self.slot, self.samples = -1, ()

    def rehearse(self, step: Step, number: int, slot: int) -> Any:
        """A slot that another worker had is computed, to compare; returns its micro-batch."""
        self._flat.begin_slot()
        return self._hand_out(step, number, slot)

    def end_rehearsal(self, step: Step, number: int) -> None:
        """The script is done with a slot that another worker had; nothing of it is used.

        Raises:
            RefusedByJob: this worker computes other bits than the job's.
        """
        count = len(self.samples)
        loss, _ = step.end_slot()
        buffer = self._shared.pool.take()
        self._flat.collect(buffer, weight=count / self._micro_batch, loss=loss, samples=count)
        outcome = self._shared.rehearsed(gradient_digest(self._flat.shape, buffer))
        self._shared.pool.give(buffer)
        self.slot, self.samples = -1, ()
        if outcome in ("unsteady", "other"):
            self._tell_rehearsal(self._shared.rehearsal.words(number, outcome), refused=outcome == "other")

    def _hand_out(self, step: Step, number: int, slot: int) -> Any:
        self.step, self.slot, self.samples = number, slot, self._batches.samples(number, slot)
        batch = self._batches.fetch(number, slot)
        step.begin_slot()
        return batch

    def _tell_rehearsal(self, what: str, *, refused: bool) -> None:
        shared, context = self._shared, self._context
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
