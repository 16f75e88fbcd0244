"""One step as the script sees it: iterate for micro-batches, `backward` each, then step the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from reknit.core.errors import UsageError

from .metric import number

if TYPE_CHECKING:
    from .run import Run


class Step:
    """A step of the run.

    Iterating yields this worker's micro-batches, and more of them if a peer dies meanwhile. When the loop ends, every
    tracked parameter's `.grad` is the mean over the global batch, the same bits on every worker.

    Attributes:
        index: number of the step, from 0 over all epochs. A worker that was left out for a while comes back later.
        complete: the gradient is in place.
        loss: global mean loss once complete; None if `backward` was never used.
        metrics: global means of what was logged, once complete; a metric counts in the micro-batches that gave it.
        nonfinite: (slot, sample ids) of the micro-batches whose gradient or loss held NaN or Inf, once complete.
        generation: number of the world in which the step was completed, once complete.
    """

    def __init__(self, run: Run, index: int) -> None:
        self.index = index
        self.complete = False
        self.loss: float | None = None
        self.metrics: dict[str, float] = {}
        self.nonfinite: tuple[tuple[int, tuple[int, ...]], ...] = ()
        self.generation = 0
        self._run = run
        self._slot: _Slot | None = None

    @property
    def epoch(self) -> int:
        """Epoch that the step belongs to."""
        return self._run.course.epoch_of(self.index)

    @property
    def ends_epoch(self) -> bool:
        """True for the last step of an epoch: where schedulers by epoch step."""
        return (self.index + 1) % self._run.course.steps_an_epoch == 0

    def __iter__(self) -> Iterator[Any]:
        """Yield micro-batches until the step is complete."""
        return self._run.work_on(self)

    def backward(self, loss: torch.Tensor, *, scaler: torch.amp.GradScaler | None = None, **options: Any) -> None:
        """Backpropagate a micro-batch's mean loss, and count it in the step's loss.

        May be called several times for one micro-batch: gradients and losses add up.

        Args:
            loss: scalar: the mean over the micro-batch's samples.
            scaler: what is backpropagated is the loss scaled by it; `step.loss` stays unscaled.
            options: as `torch.Tensor.backward` takes them.

        Raises:
            UsageError: called outside the loop over the micro-batches.
        """
        slot = self._in_slot("step.backward")
        (loss if scaler is None else scaler.scale(loss)).backward(**options)
        slot.losses.append(loss.detach())

    def log(self, **metrics: Any) -> None:
        """Note metrics of a micro-batch; after the step `step.metrics` holds their global means.

        Args:
            metrics: name -> mean over the micro-batch's samples: a number, or a tensor with one element.

        Raises:
            UsageError: called outside the loop over the micro-batches, twice for one micro-batch, or not a number.
        """
        slot = self._in_slot("step.log")
        for name, value in metrics.items():
            if name in slot.metrics:
                raise UsageError(
                    f"the metric {name!r} was logged twice in one micro-batch",
                    hint="log the mean over the micro-batch, once",
                )
            slot.metrics[name] = number(name, value)

    def _in_slot(self, call: str) -> _Slot:
        if self._slot is None:
            after = "; the step's values are in step.loss and step.metrics now" if self.complete else ""
            raise UsageError(
                f"{call} was called outside the loop over the micro-batches of step {self.index}{after}",
                hint=f"call {call} inside `for batch in step:`",
            )
        return self._slot

    # ------------------------------------------------------------------------------------------- for the run

    def begin_slot(self) -> None:
        """A micro-batch is handed to the script."""
        self._slot = _Slot()

    def end_slot(self) -> tuple[float | None, dict[str, float]]:
        """The script is done with the micro-batch: return its loss and its metrics."""
        slot, self._slot = self._slot, None
        return (None, {}) if slot is None else (slot.loss(), slot.metrics)


class _Slot:
    """What the script has said of the micro-batch that it works on."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.metrics: dict[str, float] = {}

    def loss(self) -> float | None:
        if not self.losses:
            return None
        total = 0.0
        for loss in self.losses:
            total += float(loss)
        return total
