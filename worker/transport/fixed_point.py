"""Exact sums in fixed point: slots' flat buffers to 64-bit integers that add up in any order, and back to floats.

    point = FixedPoint(lanes, slots)
    extent = point.count(own, bounds)         # own slots as integers, in `point.total`; the largest elements
    …  MAX of the extents over all workers  →  ruling = scale.rule(…)
    point.count_again(own, ruling)            # buckets whose bound was not the one that holds
    …  SUM of `point.total` over all workers
    point.write(result, ruling.bounds, first, last)

The result is the exact sum of the counted elements, rounded once to the format (to nearest, ties to even), whatever
the split, the order and the number of workers. What is not a finite number takes no part in the integers: where some
slot has one, codes are added up beside them (`specials`), and NaN and infinities arrive as the fold of the floats would
have made them, except that a NaN has no payload. A zero is +0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reknit.worker.ring.pieces import Buffer

from . import scale
from .buckets import BLOCK, Block, Lanes
from .scale import Exponents, Ruling

Integers = npt.NDArray[np.int64]
Counted = npt.NDArray[np.int32]
"""A small number for each bucket."""
Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_NAN, _PLUS, _MINUS = 1, 1 << 21, 1 << 42
_FIELD = (1 << 21) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """What a worker's slots hold at most; two extents merge by the larger of each number.

    Attributes:
        seen: exponents of the largest finite elements (`scale.exponents`).
        special: 1 where a bucket holds something that is not a finite number.
    """

    seen: Exponents
    special: Counted


class FixedPoint:
    """Counts a worker's slots into lanes, in host memory; keeps its arrays from step to step.

    Attributes:
        lanes: the layout.
        total: the lanes: this worker's counts, and once they are added up, everybody's.
    """

    def __init__(self, lanes: Lanes, slots: int) -> None:
        self.lanes = lanes
        self.total: Integers = np.zeros(lanes.count, dtype=np.int64)
        self._slots = slots
        self._low = scale.low(slots)
        self._floats: dict[str, Floats] = {"f4": np.empty(BLOCK, np.float32), "f8": np.empty(BLOCK, np.float64)}
        self._rest = np.empty(BLOCK, np.float64)
        self._integers = np.empty(BLOCK, np.int64)
        self._gaps = lanes.gaps()

    def replace_total(self) -> None:
        """Take a new array for the lanes: somebody may still write to the old one."""
        self.total = np.zeros(self.lanes.count, dtype=np.int64)

    # ------------------------------------------------------------------------------------------------- floats in

    def count(self, own: Sequence[Buffer], bounds: Exponents, *, covered: int, raw: bool) -> Extent:
        """Count own slots; what exceeds its bound is left for `count_again`.

        Args:
            own: flat buffers of this worker's slots; may be empty.
            bounds: exponents, `UNKNOWN` where none is known.
            covered: slots that the worker answers for, also those without samples.
            raw: this worker has slot 0, whose raw bytes are the result's.
        """
        lanes = self.lanes
        largest = np.zeros(len(lanes.buckets))
        special = np.zeros(len(lanes.buckets), dtype=np.int32)
        limits = np.ldexp(1.0, bounds)
        factors = Factors(scale.powers(lanes.buckets, bounds, self._slots), 1)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for block in lanes.blocks:
                fresh = True
                for slot in own:
                    elements = _elements(slot, block)
                    fits = _measure(elements, block, limits, largest, special)
                    if fits:
                        self._add(_finite(elements, block, special), block, factors, fresh=fresh)
                        fresh = False
                if fresh:
                    self._lanes_of(block)[:] = 0
        for section, lane in lanes.raw:
            place = self.total[lane : lane + (section.end - section.start) // 8]
            if raw:
                place[:] = own[0][section.start : section.end].view(np.int64)
            else:
                place[:] = 0
        self.total[lanes.coverage] = covered
        return Extent(scale.exponents(largest), special)

    def count_again(self, own: Sequence[Buffer], ruling: Ruling, special: Counted) -> None:
        """Count the buckets that `ruling` names once more, with the bounds that hold."""
        if not own or not ruling.again.any():
            return
        factors = Factors(scale.powers(self.lanes.buckets, ruling.bounds, self._slots), 1)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for block in self.lanes.blocks:
                if not ruling.again[block.first : block.last].any():
                    continue
                for number, slot in enumerate(own):
                    self._add(_finite(_elements(slot, block), block, special), block, factors, fresh=number == 0)

    def specials(self, own: Sequence[Buffer], special: Counted) -> Integers:
        """Codes of what is not finite, one an element of each block that has a bucket named in `special`, in order."""
        named = self._named(special)
        codes = np.zeros(sum(block.count for block in named), dtype=np.int64)
        at = 0
        for block in named:
            place = codes[at : at + block.count]
            at += block.count
            for slot in own:
                elements = _elements(slot, block)
                place += np.isnan(elements) * _NAN + (elements == np.inf) * _PLUS + (elements == -np.inf) * _MINUS
        return codes

    def _named(self, special: Counted) -> list[Block]:
        return [b for b in self.lanes.blocks if special[b.first : b.last].any()]

    def _lanes_of(self, block: Block) -> Integers:
        width = 2 if block.dtype == "f8" else 1
        return self.total[block.lane : block.lane + width * block.count]

    def _add(self, elements: Floats, block: Block, factors: Factors, *, fresh: bool) -> None:
        n = block.count
        lanes = self._lanes_of(block)
        scaled = self._floats[block.dtype][:n]
        np.multiply(elements, factors.of(block, 0), out=scaled)
        if factors.twice(block):
            np.multiply(scaled, factors.of(block, 1), out=scaled)
        if block.dtype == "f4":
            np.rint(scaled, out=scaled)
            self._add_integers(scaled, lanes, fresh=fresh)
            return
        rest = self._rest[:n]
        np.copyto(rest, scaled)
        np.rint(scaled, out=scaled)
        np.subtract(rest, scaled, out=rest)
        np.multiply(rest, float(1 << self._low), out=rest)
        np.rint(rest, out=rest)
        self._add_integers(scaled, lanes[:n], fresh=fresh)
        self._add_integers(rest, lanes[n:], fresh=fresh)

    def _add_integers(self, whole: Floats, lanes: Integers, *, fresh: bool) -> None:
        if fresh:
            lanes[:] = whole
            return
        integers = self._integers[: len(whole)]
        integers[:] = whole
        np.add(lanes, integers, out=lanes)

    # ------------------------------------------------------------------------------------------------ floats out

    def write(self, result: Buffer, bounds: Exponents, first: int = 0, last: int | None = None) -> None:
        """Write the sums of blocks `[first, last)` into a flat buffer, from lanes that hold everybody's counts."""
        factors = Factors(scale.powers(self.lanes.buckets, bounds, self._slots), -1)
        with np.errstate(over="ignore", under="ignore"):
            for block in self.lanes.blocks[first:last]:
                place = _elements(result, block)
                lanes, n = self._lanes_of(block), block.count
                place[:] = lanes if block.dtype == "f4" else _rounded(lanes[:n], lanes[n:], self._low)
                np.multiply(place, factors.of(block, 0), out=place)
                if factors.twice(block):
                    np.multiply(place, factors.of(block, 1), out=place)

    def write_rest(self, result: Buffer) -> None:
        """Write what is no element of a bucket: slot 0's raw bytes, and zeros where nothing is."""
        for section, lane in self.lanes.raw:
            count = (section.end - section.start) // 8
            result[section.start : section.end].view(np.int64)[:] = self.total[lane : lane + count]
        for start, end in self._gaps:
            result[start:end] = 0

    def write_specials(self, result: Buffer, special: Counted, codes: Integers) -> None:
        """Put NaN and infinities where some slot had them; `codes` are everybody's, added up."""
        at = 0
        for block in self._named(special):
            found = codes[at : at + block.count]
            at += block.count
            nan, plus, minus = found & _FIELD, (found >> 21) & _FIELD, (found >> 42) & _FIELD
            place = _elements(result, block)
            place[plus > 0] = np.inf
            place[minus > 0] = -np.inf
            place[(nan > 0) | ((plus > 0) & (minus > 0))] = np.nan


class Factors:
    """2**power of every bucket, as two factors: 2**149 alone is no float, 2**-149 alone no normal one.

    Attributes:
        of_format: by format, the two factors of each bucket.
    """

    def __init__(self, powers: Exponents, sign: int) -> None:
        second = np.where(np.abs(powers) > 126, powers - powers // 2, 0)
        one = np.ldexp(1.0, sign * (powers - second)), np.ldexp(1.0, sign * second)
        with np.errstate(over="ignore"):  # those of f8 buckets, which nobody asks for
            self.of_format: dict[str, tuple[Any, Any]] = {
                "f4": (one[0].astype(np.float32), one[1].astype(np.float32)),
                "f8": one,
            }
        self._twice = second != 0
        self._ever = bool(self._twice.any())

    def twice(self, block: Block) -> bool:
        """True if the second factor is not 1 everywhere."""
        return self._ever and bool(self._twice[block.first : block.last].any())

    def of(self, block: Block, number: int) -> Floats | np.float32 | np.float64:
        """A factor for each element of a block; a single number if the block lies in one bucket."""
        factors = self.of_format[block.dtype][number]
        if block.last == block.first + 1:
            one: np.float32 | np.float64 = factors[block.first]
            return one
        spread: Floats = np.repeat(factors[block.first : block.last], np.diff((*block.offsets, block.count)))
        return spread


def _elements(buffer: Buffer, block: Block) -> Floats:
    elements: Floats = buffer[block.start : block.end].view(block.dtype)
    return elements


def _measure(
    elements: Floats,
    block: Block,
    limits: npt.NDArray[np.float64],
    largest: npt.NDArray[np.float64],
    special: Counted,
) -> bool:
    """Note the largest finite element of each bucket, and where there is something else; True if all may be counted."""
    buckets = slice(block.first, block.last)
    if block.last == block.first + 1:
        most = max(float(elements.max()), -float(elements.min()))
        if not most < np.inf:  # NaN or infinite
            special[block.first] = 1
            most = float(np.abs(elements).max(initial=0.0, where=np.isfinite(elements)))
        largest[block.first] = max(largest[block.first], most)
        return bool(most <= limits[block.first])
    sizes = np.abs(elements)
    found = np.maximum.reduceat(sizes, block.offsets).astype(np.float64)
    odd = ~(found < np.inf)
    if odd.any():
        special[buckets] |= odd
        found = np.maximum.reduceat(np.where(np.isfinite(sizes), sizes, 0), block.offsets).astype(np.float64)
    np.maximum(largest[buckets], found, out=largest[buckets])
    return True  # one small bucket that does not fit spoils only its own lanes, and they are counted again


def _finite(elements: Floats, block: Block, special: Counted) -> Floats:
    """The elements, with zeros for what is not finite."""
    if not special[block.first : block.last].any():
        return elements
    finite: Floats = np.where(np.isfinite(elements), elements, elements.dtype.type(0))
    return finite


def _rounded(high: Integers, lowly: Integers, low: int) -> npt.NDArray[np.float64]:
    """`high + lowly * 2**-low`, rounded once to a double, ties to even."""
    carry = (lowly + (1 << (low - 1))) >> low
    whole = high + carry
    fraction = (lowly - (carry << low)).astype(np.float64) * 2.0**-low  # exact: at most 52 bits and a sign
    head = whole.astype(np.float64)
    rest = (whole - head.astype(np.int64)).astype(np.float64)  # exact: what the conversion rounded away
    tail = rest + fraction
    # The sum of three doubles is rounded twice. Rounding the inner sum to odd makes the outer rounding the right one:
    # the last bit of an inexact `tail` tells on which side of a tie the rest lies (Boldo and Melquiond, 2008).
    part = tail - rest
    lost = (rest - (tail - part)) + (fraction - part)
    bits = tail.view(np.int64)
    step = np.where((lost > 0) == (tail > 0), 1, -1)
    odd = np.where((lost != 0) & (bits & 1 == 0), bits + step, bits)
    rounded: npt.NDArray[np.float64] = head + odd.view(np.float64)
    return rounded
