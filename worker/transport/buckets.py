"""Buckets: the parts of a flat buffer that share one scale, cut into blocks of a size that stays in the cache.

A bucket is one parameter, one buffer of a module, the counts, or one number of the step's loss. Bytes in no bucket
(padding) are no part of the sum: they are zero in the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from reknit.worker.ring.pieces import Section, Shape

BLOCK = 16384
"""Elements that are worked on at once: all of a block's arrays fit into a core's cache (measured: 22 to 24 ms for 25 M
floats at 16,384 to 131,072 elements, five times that at 8,192, where the calls themselves count)."""
SMALL = 4096
"""Buckets of fewer elements share a block; a larger one has blocks of its own and needs no vector of scales."""

_WIDTH = {"f4": 4, "f8": 8}


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring elements of one section that are worked on at once.

    Attributes:
        dtype: of the elements.
        start, end: bytes in the flat buffer.
        first, last: buckets `[first, last)` that the block lies in; one bucket may have many blocks.
        offsets: element offsets in the block at which its buckets begin.
        lane: number of its first lane (see `Lanes`).
    """

    dtype: Literal["f4", "f8"]
    start: int
    end: int
    first: int
    last: int
    offsets: tuple[int, ...]
    lane: int

    @property
    def count(self) -> int:
        """Elements."""
        return (self.end - self.start) // _WIDTH[self.dtype]


@dataclasses.dataclass(frozen=True, slots=True)
class Lanes:
    """Where everything that is summed lies in the one array of 64-bit integers, the lanes, that travels.

    First one lane an element of the f4 buckets, then one for the upper and one for the lower part of each element of
    the f8 buckets (all upper parts of a block, then all lower ones), then slot 0's raw bytes, 8 a lane, then one lane
    that counts the slots in the sum.

    Attributes:
        buckets: in flat order, none empty, none in a raw section.
        blocks: all elements of all buckets, in flat order.
        raw: raw sections that travel, each with its first lane.
        coverage: the lane that counts slots.
        count: lanes in all.
    """

    buckets: tuple[Section, ...]
    blocks: tuple[Block, ...]
    raw: tuple[tuple[Section, int], ...]
    coverage: int
    count: int

    def gaps(self) -> list[tuple[int, int]]:
        """Bytes that lie in no bucket and no raw section, but for those at the end."""
        taken = sorted([(b.start, b.end) for b in self.buckets] + [(s.start, s.end) for s, _ in self.raw])
        gaps, at = [], 0
        for start, end in taken:
            if start > at:
                gaps.append((at, start))
            at = end
        return gaps


def whole_sections(shape: Shape) -> tuple[Section, ...]:
    """The coarsest buckets: one a section."""
    return tuple(s for s in shape.sections if s.dtype != "raw")


def lay_out(shape: Shape, buckets: Sequence[Section], block: int = BLOCK, small: int = SMALL) -> Lanes:
    """Cut the buckets of a flat buffer into blocks and give each its lanes.

    Args:
        shape: of the flat buffer, without anything that a transport appends to it.
        buckets: sections of dtype f4 or f8 in flat order, each within a section of the shape; empty ones are left out.
        block: elements of a block at most.
        small: buckets of fewer elements share a block.

    Raises:
        ValueError: buckets overlap, are out of order or reach beyond their section; raw bytes are no multiple of 8.
    """
    kept = tuple(b for b in buckets if b.end > b.start)
    _check(shape, kept)
    blocks: list[Block] = []
    lane = 0
    number = 0
    while number < len(kept):
        last = _together(kept, number, block, small)
        bucket, width = kept[number], _WIDTH[kept[number].dtype]
        end = kept[last - 1].end
        for start in range(bucket.start, end, block * width):
            stop = min(start + block * width, end)
            offsets = tuple((b.start - start) // width for b in kept[number:last]) if last > number + 1 else (0,)
            made = Block(_dtype(bucket), start, stop, number, last, offsets, lane)
            blocks.append(made)
            lane += made.count * (2 if made.dtype == "f8" else 1)
        number = last
    raw = []
    for section in shape.sections:
        if section.dtype == "raw":
            if (section.end - section.start) % 8:
                raise ValueError(f"raw bytes [{section.start}, {section.end}) are no multiple of 8")
            raw.append((section, lane))
            lane += (section.end - section.start) // 8
    return Lanes(kept, tuple(blocks), tuple(raw), lane, lane + 1)


def _together(buckets: Sequence[Section], first: int, block: int, small: int) -> int:
    """End of the run of small buckets that lie side by side from `first` on and fit into one block."""
    width = _WIDTH[buckets[first].dtype]
    if buckets[first].end - buckets[first].start >= small * width:
        return first + 1
    last = first + 1
    while (
        last < len(buckets)
        and buckets[last].dtype == buckets[first].dtype
        and buckets[last].start == buckets[last - 1].end
        and buckets[last].end - buckets[last].start < small * width
        and buckets[last].end - buckets[first].start <= block * width
    ):
        last += 1
    return last


def _dtype(bucket: Section) -> Literal["f4", "f8"]:
    if bucket.dtype == "raw":
        raise ValueError(f"bytes [{bucket.start}, {bucket.end}) are raw: they have no scale")
    return bucket.dtype


def _check(shape: Shape, buckets: Sequence[Section]) -> None:
    at = 0
    for bucket in buckets:
        width = _WIDTH[_dtype(bucket)]
        inside = any(
            s.dtype == bucket.dtype
            and s.start <= bucket.start
            and bucket.end <= s.end
            and (bucket.start - s.start) % width == 0
            and (bucket.end - s.start) % width == 0
            for s in shape.sections
        )
        if bucket.start < at or not inside:
            raise ValueError(f"bucket [{bucket.start}, {bucket.end}) of {bucket.dtype} lies in no section, or overlaps")
        at = bucket.end
