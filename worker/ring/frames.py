"""Frames on a ring link: a fixed header and a payload.

Header, little endian, 32 bytes: magic `RKN2`, kind u8, lane u8, 2 bytes zero, generation u32, piece u32, coverage u32,
length u32, step i64. `coverage` counts the slots that are summed up in the payload; only a final piece that covers all
slots of a step is ever applied. `lane` is 1 if the payload does not follow but lies in memory that both sides share.
"""

from __future__ import annotations

import dataclasses
import enum
import struct

from reknit.core.errors import WireError

MAGIC = b"RKN2"
HEADER = struct.Struct("<4sBB2xIIIIq")
MAX_PAYLOAD = 64 << 20
PIECE = 256 << 10
"""Bytes of a piece: large enough for the system calls, small enough to stay in the cache while it is summed."""
LARGE_PIECE = 512 << 10
"""Bytes of a piece of a flat buffer of at least `LARGE` bytes: there are more than enough of them for all links."""
LARGE = 64 << 20


class Kind(enum.IntEnum):
    """What a frame carries."""

    REDUCE = 1
    """A piece on its way from the first to the last active, partly summed."""
    FINAL = 2
    """A finished piece on its way round."""
    TOKEN = 3
    """Roll call or end-of-run token."""
    RESEND = 4
    """A piece of the furthest result, for members that lack it."""
    BYE = 5
    """The sender has finished the run and knows that everybody has the last result."""


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """Decoded frame header; `length` is the payload's size in bytes, `lane`: it is in the shared memory."""

    kind: Kind
    generation: int
    step: int
    piece: int
    coverage: int
    length: int
    lane: bool = False

    def pack(self) -> bytes:
        """Encode to `HEADER.size` bytes."""
        return HEADER.pack(
            MAGIC, self.kind, self.lane, self.generation, self.piece, self.coverage, self.length, self.step
        )


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """Decode a header.

    Raises:
        WireError: wrong magic, unknown kind or a length beyond `MAX_PAYLOAD`: the peer does not speak this protocol.
    """
    magic, kind, lane, generation, piece, coverage, length, step = HEADER.unpack(data)
    if magic != MAGIC:
        raise WireError(f"ring frame with magic {bytes(magic)!r}, expected {MAGIC!r}")
    try:
        known = Kind(kind)
    except ValueError:
        raise WireError(f"ring frame of unknown kind {kind}") from None
    if length > MAX_PAYLOAD:
        raise WireError(f"ring frame of {length} bytes, more than {MAX_PAYLOAD}")
    return Header(known, generation, step, piece, coverage, length, bool(lane))
