"""The flat buffer that a step reduces, cut into sections by arithmetic and into pieces by size; and the fold itself.

The fold is the whole of promise P2: for every element, `((g0 + g1) + g2) + ...` in slot order, whoever owns which slot.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from reknit.worker.memory import anonymous

from .frames import LARGE, LARGE_PIECE, PIECE

Buffer = npt.NDArray[np.uint8]
"""A flat byte buffer of one slot or one result."""
HUGE = 1 << 22
"""Bytes from which a buffer lies in huge pages: touching 100 MB for the first time takes 20 ms then, else 220 ms."""


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """Bytes `[start, end)` of the flat buffer, summed as `f4` or `f8`, or `raw`: slot 0's bytes, not summed.

    Attributes:
        gradients: so many bytes at its beginning hold gradients; what follows (buffers, counts) may be NaN or Inf in a
            healthy model.
    """

    dtype: Literal["f4", "f8", "raw"]
    start: int
    end: int
    gradients: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `[start, end)` within one section; `gradients` of them, at its beginning, hold gradients."""

    dtype: Literal["f4", "f8", "raw"]
    start: int
    end: int
    gradients: int = 0


@dataclasses.dataclass(frozen=True)
class Shape:
    """The flat buffer's shape, equal on all workers.

    Attributes:
        sections: contiguous from 0, each a multiple of its item size.
    """

    sections: tuple[Section, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a buffer."""
        return self.sections[-1].end if self.sections else 0

    def pieces(self, size: int = 0) -> tuple[Piece, ...]:
        """Cut into pieces of at most `size` bytes (a multiple of 8; 0: as suits the buffer), never across a section."""
        size = size or (PIECE if self.nbytes < LARGE else LARGE_PIECE)
        return tuple(
            Piece(s.dtype, at, min(at + size, s.end), max(0, min(size, s.start + s.gradients - at)))
            for s in self.sections
            for at in range(s.start, s.end, size)
        )

    def empty(self) -> Buffer:
        """A new buffer with undefined content.

        Raises:
            MemoryError: there is no room.
        """
        if self.nbytes < HUGE:
            return np.empty(self.nbytes, dtype=np.uint8)
        try:
            return np.frombuffer(anonymous(self.nbytes), np.uint8)[: self.nbytes]
        except OSError as error:
            raise MemoryError(f"no room for a buffer of {self.nbytes} bytes: {error.strerror}") from error


def fold(start: Buffer, slots: Sequence[Buffer], piece: Piece, out: Buffer) -> None:
    """Add slots, in slot order, to the fold of all slots before them.

    Args:
        start: the piece's bytes of the fold so far.
        slots: whole buffers; may be empty.
        piece: which bytes of them.
        out: where the piece's bytes of the new fold go; may be `start` itself.
    """
    if piece.dtype == "raw" or not slots:
        if out is not start:
            out[:] = start
        return
    before, total = start.view(piece.dtype), out.view(piece.dtype)
    for slot in slots:
        np.add(before, slot[piece.start : piece.end].view(piece.dtype), out=total)
        before = total


def doubtful(values: Buffer, piece: Piece) -> bool:
    """True if the gradients in a piece may hold NaN or Inf; False is certain. Cheap while the piece is in the cache.

    A sum of squares is finite only if every value is; it may overflow though every value is finite.
    """
    if not piece.gradients:
        return False
    gradients = values[: piece.gradients].view(piece.dtype)
    return not math.isfinite(np.dot(gradients, gradients))


def finite(slot: Buffer, cut: Sequence[Piece]) -> bool:
    """True if all gradients of a slot are finite."""
    return not any(
        piece.gradients
        and doubtful(slot[piece.start : piece.end], piece)
        and not np.isfinite(slot[piece.start : piece.start + piece.gradients].view(piece.dtype)).all()
        for piece in cut
    )
