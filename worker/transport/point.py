"""What a collective transport asks of whoever counts slots; and the one that counts on the processor."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from reknit.worker.ring.pieces import Buffer

from .buckets import Lanes
from .fixed_point import Counted, Extent, FixedPoint
from .scale import Exponents, Ruling


class Point(Protocol):
    """Counts slots into integers and turns integers into floats; see `fixed_point` for the order of calls.

    Attributes:
        lanes: the layout.
        integers: the lanes, where the transport adds them up.
    """

    lanes: Lanes
    integers: torch.Tensor

    def count(self, own: Sequence[Buffer], bounds: Exponents, *, covered: int, raw: bool) -> Extent:
        """As `FixedPoint.count`."""

    def count_again(self, own: Sequence[Buffer], ruling: Ruling, special: Counted) -> None:
        """As `FixedPoint.count_again`."""

    def codes(self, own: Sequence[Buffer], special: Counted) -> torch.Tensor:
        """As `FixedPoint.specials`, where the transport adds them up; empty if there is nothing special."""

    def covered(self) -> int:
        """Slots in the sum."""

    def write(self, result: Buffer, bounds: Exponents, first: int, last: int) -> None:
        """As `FixedPoint.write`; the bytes are there after `write_rest`."""

    def write_rest(self, result: Buffer, special: Counted, codes: torch.Tensor) -> None:
        """Write all that `write` does not."""

    def renew(self) -> None:
        """Take new memory for the integers: somebody may still write to the old one."""

    def at_work(self) -> contextlib.AbstractContextManager[Any]:
        """Within it the other methods are called, and collectives begun."""

    def quiet(self) -> None:
        """Wait until nothing of ours writes to a result any more."""


class HostPoint:
    """See `Point`: in host memory, with numpy."""

    def __init__(self, lanes: Lanes, slots: int) -> None:
        self.lanes = lanes
        self._point = FixedPoint(lanes, slots)
        self.integers = torch.from_numpy(self._point.total)

    def count(self, own: Sequence[Buffer], bounds: Exponents, *, covered: int, raw: bool) -> Extent:
        """See `Point`."""
        return self._point.count(own, bounds, covered=covered, raw=raw)

    def count_again(self, own: Sequence[Buffer], ruling: Ruling, special: Counted) -> None:
        """See `Point`."""
        self._point.count_again(own, ruling, special)

    def codes(self, own: Sequence[Buffer], special: Counted) -> torch.Tensor:
        """See `Point`."""
        return torch.from_numpy(self._point.specials(own, special))

    def covered(self) -> int:
        """See `Point`."""
        return int(self._point.total[self.lanes.coverage])

    def write(self, result: Buffer, bounds: Exponents, first: int, last: int) -> None:
        """See `Point`."""
        self._point.write(result, bounds, first, last)

    def write_rest(self, result: Buffer, special: Counted, codes: torch.Tensor) -> None:
        """See `Point`."""
        self._point.write_rest(result)
        if len(codes):
            self._point.write_specials(result, special, codes.numpy())

    def renew(self) -> None:
        """See `Point`."""
        self._point.replace_total()
        self.integers = torch.from_numpy(self._point.total)

    def at_work(self) -> contextlib.AbstractContextManager[Any]:
        """See `Point`."""
        return contextlib.nullcontext()

    def quiet(self) -> None:
        """See `Point`: what is called here has ended when it returns."""
