"""A group of workers that adds up arrays of integers: the port between exact sums and a collective library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from reknit.core.errors import ReknitError


class CollectiveFailed(ReknitError):
    """A collective ended with an error: some member is gone, or has left the group."""


class Work(Protocol):
    """A collective under way; the tensor given to it must be left alone until it is done."""

    @property
    def done(self) -> bool:
        """True once it has ended, well or not."""

    def check(self) -> None:
        """After it has ended: make the tensor hold the result for this thread.

        Raises:
            CollectiveFailed: it did not end well.
        """


class Group(Protocol):
    """The members of one generation's ring, by rank. Every member must start the same collectives in the same order.

    Attributes:
        pace: seconds between looks at whether a collective is done.
    """

    pace: float

    def start(self, tensor: torch.Tensor, wake: Callable[[], None]) -> Work:
        """Begin to add up a tensor over all members, in place.

        Args:
            tensor: contiguous; of 64-bit integers.
            wake: called once it has ended, on any thread; it may also never be called if `done` tells by itself.

        Raises:
            CollectiveFailed: it could not begin.
        """

    def close(self) -> None:
        """End whatever is under way and free everything, in the background: never blocks. Idempotent."""

    def closed(self, seconds: float) -> bool:
        """Close, and wait until everything is free; False after so many seconds."""
