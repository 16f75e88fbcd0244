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
    total = float(np.cumsum(np.concatenate([part for g in reals for part in _rows(g, norm_type)]))[-1])
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


def _rows(gradient: torch.Tensor, norm_type: float) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Sums of |x|^p of each row, in order."""
    flat = gradient.reshape(-1)
    most = (_ROWS if norm_type in (1.0, 2.0) else _ROWS_OF_POWERS) * ROW
    room = torch.empty(min(most, -(-flat.numel() // ROW) * ROW), dtype=torch.float64, device=flat.device)
    sums = []
    for part in flat.split(most):
        rows = room[: -(-part.numel() // ROW) * ROW]
        rows[: part.numel()].copy_(part)
        rows[part.numel() :] = 0.0
        if norm_type == 2.0:
            rows.mul_(rows)
        else:
            rows.abs_()
            if norm_type != 1.0:
                rows.pow_(norm_type)
        sums.append(rows.view(-1, ROW).sum(1).cpu().numpy())
    return sums
