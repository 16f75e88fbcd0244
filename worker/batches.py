"""Micro-batches: samples fetched and collated, under random numbers of their own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from reknit.core.errors import UsageError
from reknit.core.order import Course, slot_seed

Collate = Callable[[list[Any]], Any]


def length_of(dataset: Any, call: str = "ring.steps") -> int:
    """Length of a map-style dataset, which was given to `call`.

    Raises:
        UsageError: it has no length, no `__getitem__`, or no samples.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"{type(dataset).__name__} cannot be split by sample: it has no __len__ and __getitem__",
            hint=f"give {call} a map-style dataset; an iterable has no order that all workers could know",
        )
    samples = len(dataset)
    if samples < 1:
        raise UsageError(f"the dataset given to {call} is empty", hint="check its path and filters")
    return samples


def seed_all(seed: int) -> None:
    """Seed torch, numpy's global generator and `random`, so that no random number depends on who computes the slot."""
    if torch.accelerator.current_accelerator() is None:
        torch.default_generator.manual_seed(seed)  # a build for CPUs only: the same bits, 250 times as fast
    else:
        torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


class Fetch:
    """Sample ids to a batch.

    Args:
        dataset: map-style; `__getitems__(list of ids)` is used where it exists.
        collate: list of samples to batch; torch's default otherwise.
    """

    def __init__(self, dataset: Any, collate: Collate | None = None) -> None:
        self._dataset = dataset
        self._collate = collate or default_collate
        self._many: Callable[[Sequence[int]], list[Any]] | None = getattr(dataset, "__getitems__", None)

    def __call__(self, ids: Sequence[int]) -> Any:
        """Return the batch of these samples."""
        items = self._many(list(ids)) if self._many is not None else [self._dataset[i] for i in ids]
        return self._collate(items)


class Batches:
    """Micro-batches of a course over a dataset.

    Args:
        dataset: map-style.
        course: sample order.
        collate: list of samples to batch; torch's default otherwise.
    """

    def __init__(self, dataset: Any, course: Course, collate: Collate | None = None) -> None:
        self.course = course
        self._last: tuple[int, int, tuple[int, ...]] = (-1, -1, ())
        self._fetch = Fetch(dataset, collate)

    def samples(self, step: int, slot: int) -> tuple[int, ...]:
        """Ids of a slot's samples."""
        if self._last[:2] != (step, slot):
            self._last = (step, slot, tuple(self.course.slot_samples(step, slot).tolist()))
        return self._last[2]

    def fetch(self, step: int, slot: int) -> Any:
        """Seed for the slot and return its batch; the random numbers go on from there in the forward pass."""
        seed_all(slot_seed(self.course.seed, step, slot))
        return self._fetch(self.samples(step, slot))

    def settle(self, step: int) -> None:
        """Seed for what the script does between the last micro-batch and the next step: equal on all workers."""
        seed_all(slot_seed(self.course.seed, step, self.course.slots))
