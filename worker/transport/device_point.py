"""The fixed point on a GPU: the same integers and the same floats as `fixed_point`, by torch's operators.

Slots' gradients lie in page-locked host memory, so that V of them do not fill the GPU; they go up block by block, are
counted there, and the integers stay there until all is added up. Works on any device of torch: the tests compare it
with `fixed_point` bit for bit on the processor.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from reknit.worker.ring.pieces import Buffer

from . import scale
from .buckets import Block, Lanes
from .fixed_point import Counted, Extent, Factors
from .scale import Exponents, Ruling

BLOCK = 1 << 22
"""Elements that are worked on at once: enough for a GPU, and the temporary arrays stay small beside a model."""
QUIET = 5.0
"""Seconds until a stream that does not get on is left behind."""

_Both = dict[str, tuple[torch.Tensor, torch.Tensor]]
_KIND = {"f4": torch.float32, "f8": torch.float64}
_NAN, _PLUS, _MINUS = 1, 1 << 21, 1 << 42
_FIELD = (1 << 21) - 1


class DevicePoint:
    """See `point.Point`.

    Args:
        lanes: laid out with blocks of `BLOCK`.
        slots: V.
        device: where to count.
    """

    def __init__(self, lanes: Lanes, slots: int, device: torch.device) -> None:
        self.lanes = lanes
        self._slots = slots
        self._low = scale.low(slots)
        self._device = device
        self.integers = torch.zeros(lanes.count, dtype=torch.int64, device=device)
        self._gaps = lanes.gaps()
        # a stream of its own: what the script computes meanwhile is not waited for
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def at_work(self) -> contextlib.AbstractContextManager[Any]:
        """See `Point`."""
        return torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext()

    def quiet(self) -> None:
        """See `Point`. A stream that waits for a collective that never ends is left behind: it writes nothing more."""
        if self._stream is None:
            return
        deadline = time.monotonic() + QUIET
        while not self._stream.query():
            if time.monotonic() > deadline:
                self._stream = torch.cuda.Stream(self._device)
                return
            time.sleep(0.001)

    def renew(self) -> None:
        """See `Point`."""
        self.integers = torch.zeros(self.lanes.count, dtype=torch.int64, device=self._device)

    # ------------------------------------------------------------------------------------------------- floats in

    def count(self, own: Sequence[Buffer], bounds: Exponents, *, covered: int, raw: bool) -> Extent:
        """See `Point`. A bucket that exceeds its bound holds nonsense until it is counted again."""
        buckets = len(self.lanes.buckets)
        largest = torch.zeros(buckets, dtype=torch.float64, device=self._device)
        special = torch.zeros(buckets, dtype=torch.float64, device=self._device)
        factors = self._factors(bounds, 1)
        for block in self.lanes.blocks:
            for number, slot in enumerate(own):
                elements = self._up(slot, block)
                finite = torch.isfinite(elements)
                elements = torch.where(finite, elements, 0)
                self._most(largest, elements.abs(), block)
                self._most(special, ~finite, block)
                self._add(elements, block, factors, fresh=number == 0)
            if not own:
                self._lanes_of(block).zero_()
        for section, lane in self.lanes.raw:
            place = self.integers[lane : lane + (section.end - section.start) // 8]
            if raw:
                place.copy_(_bytes(own[0])[section.start : section.end].view(torch.int64), non_blocking=True)
            else:
                place.zero_()
        self.integers[self.lanes.coverage] = covered
        return Extent(scale.exponents(largest.cpu().numpy()), special.cpu().numpy().astype(np.int32))

    def count_again(self, own: Sequence[Buffer], ruling: Ruling, special: Counted) -> None:
        """See `Point`."""
        factors = self._factors(ruling.bounds, 1)
        for block in self.lanes.blocks if own else ():
            if not ruling.again[block.first : block.last].any():
                continue
            for number, slot in enumerate(own):
                elements = self._up(slot, block)
                if special[block.first : block.last].any():
                    elements = torch.where(torch.isfinite(elements), elements, 0)
                self._add(elements, block, factors, fresh=number == 0)

    def codes(self, own: Sequence[Buffer], special: Counted) -> torch.Tensor:
        """See `Point`."""
        found = []
        for block in self._named(special):
            code = torch.zeros(block.count, dtype=torch.int64, device=self._device)
            for slot in own:
                elements = self._up(slot, block)
                code += (
                    torch.isnan(elements) * _NAN + torch.isposinf(elements) * _PLUS + torch.isneginf(elements) * _MINUS
                )
            found.append(code)
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64, device=self._device)

    def _add(self, elements: torch.Tensor, block: Block, factors: _Both, *, fresh: bool) -> None:
        n, lanes = block.count, self._lanes_of(block)
        scaled = self._times(elements, block, factors)
        whole = scaled.round()
        _put(lanes[:n], whole, fresh=fresh)
        if block.dtype == "f8":
            _put(lanes[n:], ((scaled - whole) * float(1 << self._low)).round_(), fresh=fresh)

    def _most(self, numbers: torch.Tensor, elements: torch.Tensor, block: Block) -> None:
        """Raise each bucket's number to the largest of its elements."""
        place = numbers[block.first : block.last]
        if block.last == block.first + 1:
            torch.maximum(place, elements.max().to(torch.float64), out=place)
        else:
            which = torch.repeat_interleave(torch.arange(len(place), device=self._device), self._sizes(block))
            place.scatter_reduce_(0, which, elements.to(torch.float64), "amax")

    # ------------------------------------------------------------------------------------------------ floats out

    def covered(self) -> int:
        """See `Point`."""
        return int(self.integers[self.lanes.coverage])

    def write(self, result: Buffer, bounds: Exponents, first: int, last: int) -> None:
        """See `Point`."""
        factors, flat = self._factors(bounds, -1), _bytes(result)
        for block in self.lanes.blocks[first:last]:
            lanes, n = self._lanes_of(block), block.count
            floats = lanes.to(torch.float32) if block.dtype == "f4" else _rounded(lanes[:n], lanes[n:], self._low)
            place = flat[block.start : block.end].view(_KIND[block.dtype])
            place.copy_(self._times(floats, block, factors), non_blocking=True)

    def write_rest(self, result: Buffer, special: Counted, codes: torch.Tensor) -> None:
        """See `Point`; waits until everything is in host memory."""
        flat = _bytes(result)
        for section, lane in self.lanes.raw:
            count = (section.end - section.start) // 8
            place = flat[section.start : section.end].view(torch.int64)
            place.copy_(self.integers[lane : lane + count], non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()
        for start, end in self._gaps:
            result[start:end] = 0
        at = 0
        for block in self._named(special):
            code = codes[at : at + block.count].cpu()
            at += block.count
            nan, plus, minus = code & _FIELD, (code >> 21) & _FIELD, (code >> 42) & _FIELD
            place = flat[block.start : block.end].view(_KIND[block.dtype])
            place[plus > 0] = torch.inf
            place[minus > 0] = -torch.inf
            place[(nan > 0) | ((plus > 0) & (minus > 0))] = torch.nan

    # ---------------------------------------------------------------------------------------------------- pieces

    def _named(self, special: Counted) -> list[Block]:
        return [b for b in self.lanes.blocks if special[b.first : b.last].any()]

    def _lanes_of(self, block: Block) -> torch.Tensor:
        return self.integers[block.lane : block.lane + block.count * (2 if block.dtype == "f8" else 1)]

    def _up(self, slot: Buffer, block: Block) -> torch.Tensor:
        elements = _bytes(slot)[block.start : block.end].view(_KIND[block.dtype])
        return elements.to(self._device, non_blocking=True)

    def _factors(self, bounds: Exponents, sign: int) -> _Both:
        # made by numpy: 2**n by torch's own pow is not exact on every device
        made = Factors(scale.powers(self.lanes.buckets, bounds, self._slots), sign).of_format
        return {name: (self._move(first), self._move(second)) for name, (first, second) in made.items()}

    def _move(self, numbers: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device)

    def _sizes(self, block: Block) -> torch.Tensor:
        return self._move(np.diff((*block.offsets, block.count)))

    def _times(self, elements: torch.Tensor, block: Block, factors: _Both) -> torch.Tensor:
        for factor in factors[block.dtype]:
            each = factor[block.first : block.last]
            elements = elements * (each if len(each) == 1 else torch.repeat_interleave(each, self._sizes(block)))
        return elements


def _bytes(buffer: Buffer) -> torch.Tensor:
    return torch.from_numpy(buffer)


def _put(lanes: torch.Tensor, whole: torch.Tensor, *, fresh: bool) -> None:
    if fresh:
        lanes.copy_(whole)
    else:
        lanes.add_(whole.to(torch.int64))


def _rounded(high: torch.Tensor, lowly: torch.Tensor, low: int) -> torch.Tensor:
    """As `fixed_point._rounded`, step by step."""
    carry = (lowly + (1 << (low - 1))) >> low
    whole = high + carry
    fraction = (lowly - (carry << low)).to(torch.float64) * 2.0**-low
    head = whole.to(torch.float64)
    rest = (whole - head.to(torch.int64)).to(torch.float64)
    tail = rest + fraction
    part = tail - rest
    lost = (rest - (tail - part)) + (fraction - part)
    bits = tail.view(torch.int64)
    step = torch.where((lost > 0) == (tail > 0), 1, -1)
    odd = torch.where((lost != 0) & (bits & 1 == 0), bits + step, bits)
    return head + odd.view(torch.float64)
