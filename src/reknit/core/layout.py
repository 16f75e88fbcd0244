"""How training state lies in one flat run of bytes, and how these bytes are cut into chunks. Knows no torch.

A `Layout` says where each tensor lies (`entries`) and holds everything that is no tensor (`skeleton`, opaque here).
It travels beside the bytes: to a joiner over the wire, to disk as a checkpoint's index. `worker/state.py` makes it from
live objects and applies it to live objects; readers that need no torch (listing, verifying, exporting) use it as it is.
"""

from __future__ import annotations

import math

import msgspec

from reknit.core import wire
from reknit.core.errors import StateError, WireError

ALIGNMENT = 64
"""Each tensor begins at a multiple of this many bytes: a cache line, and enough for every dtype and vector unit."""

ITEM_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}
"""Every dtype that can travel (torch's names) and the bytes of one element."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor in the flat bytes.

    Attributes:
        path: where it is in the tracked state, for people and for matching, e.g. `model.layers.0.weight`.
        dtype: a key of `ITEM_BYTES`.
        shape: lengths of the dimensions; `()` for a scalar.
        offset: first byte, a multiple of `ALIGNMENT`.
        size: bytes, product of the shape times the element's bytes; may be 0.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Where all tensors of a state lie, and the rest of the state.

    Attributes:
        entries: in ascending offset, without overlap.
        skeleton: everything that is no tensor, in the form of `worker/skeleton.py`.
        total: length of the flat bytes, a multiple of `ALIGNMENT`.
        signature: one `name dtype shape` for each module tensor, parameters before buffers; equal on all workers.
    """

    entries: tuple[Entry, ...] = ()
    skeleton: bytes = b""
    total: int = 0
    signature: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the layout as bytes for the wire or the disk."""
        return wire.encode(self)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Layout:
        """Read a layout from bytes and check that its entries fit each other.

        Raises:
            WireError: the bytes are not a layout.
            StateError: an entry overlaps another, leaves the flat bytes, or has an unknown dtype.
        """
        layout: Layout = wire.decode(data, cls)
        layout.check()
        return layout

    def check(self) -> None:
        """Check that the entries are well formed and lie one after another inside `total` bytes.

        Raises:
            StateError: names the first entry that is wrong.
        """
        at = 0
        for entry in self.entries:
            item = ITEM_BYTES.get(entry.dtype)
            if item is None:
                raise StateError(f"{entry.path} has dtype {entry.dtype!r}, which is not known here")
            if any(n < 0 for n in entry.shape) or entry.size != math.prod(entry.shape) * item:
                raise StateError(f"{entry.path} has shape {entry.shape} and {entry.size} bytes, which do not fit")
            if entry.offset < at or entry.offset % ALIGNMENT or entry.offset + entry.size > self.total:
                raise StateError(f"{entry.path} lies at {entry.offset}, outside its place in {self.total} bytes")
            at = entry.offset + entry.size


def aligned(size: int) -> int:
    """Round a number of bytes up to the next multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def chunk_count(total: int, chunk_bytes: int) -> int:
    """Return how many chunks `total` bytes make; at least one, so that an empty state has a file too."""
    return max(1, -(-total // chunk_bytes))


def chunk_span(total: int, chunk_bytes: int, chunk: int) -> tuple[int, int]:
    """Return the bytes `[first, end)` of the flat run that a chunk holds; the last one is shorter."""
    first = chunk * chunk_bytes
    return first, min(first + chunk_bytes, total)


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint's index file holds: the layout, and how the flat bytes were cut.

    Attributes:
        format: version of this record.
        layout: where the tensors lie.
        chunk_bytes: size of a chunk, the last one excepted.
    """

    format: int = 1
    layout: Layout
    chunk_bytes: int

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return chunk_count(self.layout.total, self.chunk_bytes)

    def encode(self) -> bytes:
        """Return the index as bytes for the disk."""
        return wire.encode(self)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Index:
        """Read an index from bytes.

        Raises:
            WireError: the bytes are not an index of a format known here.
            StateError: the layout in it does not fit itself.
        """
        index: Index = wire.decode(data, cls)
        if index.format != 1 or index.chunk_bytes < 1:
            raise WireError(
                f"index of format {index.format} with chunks of {index.chunk_bytes} bytes is not known here"
            )
        index.layout.check()
        return index
