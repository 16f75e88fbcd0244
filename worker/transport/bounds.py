"""The bounds that the next step's gradients are counted with: a part of the training's state, so it is tracked.

Every result carries them behind its sums: whoever applies a result takes them from it, whoever loads a state or a
checkpoint gets them with it, and a worker that lacks a result gets them with the one that is sent again. Only the main
thread writes here. A worker that has slots in a step has begun it, so what is here then is what that step needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from reknit.worker.ring.pieces import Buffer, Section, Shape

from . import scale
from .scale import Exponents


class Bounds:
    """Exponents of the bounds, one a bucket; tracked as `reknit_bounds`, so it has the two methods of an optimizer.

    Args:
        shape: of the flat buffer.
        buckets: of the flat buffer; the empty ones are left out.

    Attributes:
        shape: with room for the bounds at the end.
        exponents: for the step that the main thread is at; replaced, never changed.
    """

    def __init__(self, shape: Shape, buckets: Sequence[Section]) -> None:
        kept = [b for b in buckets if b.end > b.start]
        size = -(-4 * len(kept) // 8) * 8
        self.shape = Shape((*shape.sections, Section("raw", shape.nbytes, shape.nbytes + size)))
        self.exponents: Exponents = scale.unknown(kept)
        self._start = shape.nbytes

    def write(self, result: Buffer, exponents: Exponents) -> None:
        """Put the bounds of the next step into a result."""
        place = result[self._start :]
        place[:] = 0
        place[: exponents.nbytes] = exponents.view(np.uint8)

    def take(self, result: Buffer) -> None:
        """The main thread has applied this result."""
        self.exponents = result[self._start : self._start + self.exponents.nbytes].view(np.int32).copy()

    def state_dict(self) -> dict[str, Any]:
        """The bounds as a tensor."""
        return {"exponents": torch.from_numpy(self.exponents.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over bounds; a state that has none, or those of another transport, begins without."""
        exponents = state.get("exponents")
        if exponents is None or len(exponents) != len(self.exponents):
            self.exponents = np.full_like(self.exponents, scale.UNKNOWN)
        else:
            self.exponents = exponents.to(torch.int32).numpy().copy()
