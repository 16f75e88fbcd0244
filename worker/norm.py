"""The norm of all gradients with bits that do not depend on the number of threads, and clipping by it.

torch's own sums are cut differently for each number of threads. Here each gradient is cut into rows of 4096 elements in
fp64 (the last one filled up with zeros); a row is summed by one thread, and the rows one after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from reknit.core.errors import NotFinite, UsageError

ROW = 4096
_ROWS = 64
"""Rows at a time: 2 MiB of fp64, so they stay in the cache."""
_ROWS_OF_POWERS = 8
"""32768 elements: what torch gives to one thread; `pow` rounds differently at the seams between two."""
_TINY = 1e-6
"""Added to the norm before the division, as torch does."""


def norm_of(gradients: Sequence[torch.Tensor], norm_type: float = 2.0) -> float:
    """Return the norm of all elements of all gradients together; NaN or Inf if one of them is.

    Args:
        gradients: dense, of any floating or complex type (a complex number counts as two).
        norm_type: 1, 2, any other p > 0, or infinity.

    Raises:
        UsageError: another norm type.
    """
    if not norm_type > 0:
        raise UsageError(f"norm_type is {norm_type}, must be above 0", hint="2.0, 1.0 or math.inf")
    reals = [_real(gradient) for gradient in gradients if gradient.numel()]
    if not reals:
        return 0.0
    if math.isinf(norm_type):
        largest = torch.stack([g.abs().max().double().cpu() for g in reals])
        return float(largest.max())  # unlike Python's own, it lets a NaN through
    total = float(np.cumsum(_row_sums(reals, norm_type))[-1])
    return math.pow(total, 1.0 / norm_type)


def clip(
    gradients: Sequence[torch.Tensor], max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
) -> float:
    """Scale all gradients in place so that their norm is at most `max_norm`; return the norm they had.

    As with `torch.nn.utils.clip_grad_norm_`, a norm of NaN makes all gradients NaN, one of Inf makes them 0 or NaN.

    Raises:
        NotFinite: asked for by `error_if_nonfinite`; nothing is changed then.
        UsageError: `norm_type` is not above 0.
    """
    norm = norm_of(gradients, norm_type)
    if error_if_nonfinite and not math.isfinite(norm):
        raise NotFinite(
            f"the norm of order {norm_type:g} of the gradients is {norm}, so they cannot be clipped",
            hint="step.nonfinite names the micro-batches that it came from",
        )
    factor = max_norm / (norm + _TINY)
    if not factor >= 1.0:
        for gradient in gradients:
            gradient.mul_(factor)  # foreach would round the factor to the precision of a half-precision gradient
    return norm


def _real(gradient: torch.Tensor) -> torch.Tensor:
    plain = gradient.detach()
    return torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain


def _row_sums(reals: Sequence[torch.Tensor], norm_type: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Sums of |x|^p of each row of each gradient, in order. Rows of small gradients are summed together."""
    room = _Room(_ROWS if norm_type in (1.0, 2.0) else _ROWS_OF_POWERS, norm_type)
    for gradient in reals:
        room.add(gradient.reshape(-1))
    room.sum()
    return np.concatenate(room.sums)


class _Room:
    """Rows that are summed together.

    Attributes:
        sums: of the rows so far, in order.
    """

    def __init__(self, rows: int, norm_type: float) -> None:
        self.sums: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
        self._rows, self._norm_type = rows, norm_type
        self._room = torch.empty(0, dtype=torch.float64)
        self._used = 0

    def add(self, flat: torch.Tensor) -> None:
        """Cut into rows, the last one filled up with zeros."""
        most = self._rows * ROW
        for part in (flat,) if flat.numel() <= most else flat.split(most):
            rows = -(-part.numel() // ROW)
            if self._used + rows > self._rows or self._room.device != part.device:
                self.sum()
            if self._room.device != part.device or not self._room.numel():
                self._room = torch.empty(most, dtype=torch.float64, device=part.device)
            first, end = self._used * ROW, (self._used + rows) * ROW
            self._room[first : first + part.numel()].copy_(part)
            if first + part.numel() < end:
                self._room[first + part.numel() : end].zero_()
            self._used += rows

    def sum(self) -> None:
        """Sum the rows that are there."""
        rows = self._room[: self._used * ROW]
        self._used = 0
        if not rows.numel():
            return
        if self._norm_type == 2.0:
            rows.mul_(rows)
        else:
            rows.abs_()
            if self._norm_type != 1.0:
                rows.pow_(self._norm_type)
        self.sums.append(rows.view(-1, ROW).sum(1).cpu().numpy())
