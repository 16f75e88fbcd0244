"""One step as the script sees it: iterate for micro-batches, `backward` each, then step the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

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
        generation: number of the world in which the step was completed, once complete.
    """

    def __init__(self, run: Run, index: int) -> None:
        self.index = index
        self.complete = False
        self.loss: float | None = None
        self.generation = 0
        self._run = run
        self._slot_loss: list[torch.Tensor] = []

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

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Backpropagate a micro-batch's mean loss, and count it in the step's loss.

        May be called several times for one micro-batch: gradients and losses add up.

        Args:
            loss: scalar: the mean over the micro-batch's samples.
            options: as `torch.Tensor.backward` takes them.
        """
        loss.backward(**options)
        self._slot_loss.append(loss.detach())

    def take_slot_loss(self) -> float | None:
        """Return and forget the loss of the micro-batch just computed."""
        if not self._slot_loss:
            return None
        total = sum(float(loss) for loss in self._slot_loss)
        self._slot_loss.clear()
        return total
