"""Numbers that a script gives us: metrics of a micro-batch, as means or as (sum, count), exact in fp64."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import torch

from reknit.core.errors import UsageError

from .means import Sums


def number(name: str, value: Any) -> float:
    """Return a metric's value as a float: a number, or a tensor or array with one element.

    fp64 holds every value of all smaller floating types, so nothing is rounded.

    Raises:
        UsageError: it is something else; names the metric.
    """
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            return float(value.detach().item())
        what = f"a {'complex ' if value.is_complex() else ''}tensor of shape {tuple(value.shape)}"
    elif isinstance(value, numbers.Real):  # also numpy's scalars and bool
        return float(value)
    else:
        what = f"a {type(value).__name__}"
    raise UsageError(
        f"the metric {name!r} is {what}, not a number",
        hint="give the mean over the micro-batch: a float, or a tensor with one element",
    )


def sums_of(measured: Any, samples: int) -> Sums:
    """Return what a measure has returned as sums and weights.

    Args:
        measured: name -> mean over the micro-batch, or (sum, count).
        samples: samples of the micro-batch: the weight of a mean.

    Raises:
        UsageError: not a dict of such; names the metric.
    """
    if not isinstance(measured, Mapping):
        raise UsageError(
            f"measure returned a {type(measured).__name__}, not a dict",
            hint='return the means over the micro-batch: {"accuracy": 0.5}',
        )
    found = {}
    for name, value in measured.items():
        if not isinstance(name, str):
            raise UsageError(f"measure returned the name {name!r}, which is no text")
        if isinstance(value, tuple):
            if len(value) != 2:
                raise UsageError(f"the metric {name!r} is a tuple of {len(value)}", hint="give (sum, count)")
            found[name] = (number(name, value[0]), number(name, value[1]))
        else:
            found[name] = (number(name, value) * samples, float(samples))
    return found
