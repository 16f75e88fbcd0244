"""Frames on a ring link: a fixed header and a payload.

Header, little endian, 40 bytes: magic `RKN3`, kind u8, lane u8, 2 bytes zero, generation u32, piece u32, coverage u32,
length u32, step i64, payload check u32, header check u32. `coverage` counts the slots that are summed up in the
payload; only a final piece that covers all slots of a step is ever applied. `lane` is 1 if the payload does not follow
but lies in memory that both sides share.

The checks are the low 32 bits of xxh3-64. That of the header covers all before it: a length in which one bit is wrong
would have the receiver wait for ever. A payload of less than `CHECKED` bytes has its own (0 otherwise): agreements and
roll calls must not rest on TCP's checksum. Results of any size are compared by the result chain.
"""

from __future__ import annotations

import dataclasses
import enum
import struct

import xxhash

from reknit.core.errors import WireError

MAGIC = b"RKN3"
HEADER = struct.Struct("<4sBB2xIIIIqII")
_CHECK = struct.Struct("<I")
CHECKED = 16 << 10
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
    """Decoded frame header.

    Attributes:
        length: the payload's size in bytes.
        lane: it is in the shared memory.
        check: the payload's check, 0 if it has none.
    """

    kind: Kind
    generation: int
    step: int
    piece: int
    coverage: int
    length: int
    lane: bool = False
    check: int = 0

    def pack(self) -> bytes:
        """Encode to `HEADER.size` bytes."""
        fields = (self.kind, self.lane, self.generation, self.piece, self.coverage, self.length, self.step, self.check)
        return seal(HEADER.pack(MAGIC, *fields, 0))


def check(data: bytes | bytearray | memoryview) -> int:
    """Return the check of some bytes."""
    return xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF


def check_of(payload: memoryview) -> int:
    """Return the check that a frame with this payload carries: 0 if it is empty or long."""
    return check(payload) if 0 < payload.nbytes < CHECKED else 0


def seal(header: bytes) -> bytes:
    """Return an encoded header with the right header check at its end."""
    fields = header[: -_CHECK.size]
    return fields + _CHECK.pack(check(fields))


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """Decode a header.

    Raises:
        WireError: wrong magic, unknown kind or a length beyond `MAX_PAYLOAD`: the peer does not speak this protocol; or
            the header was damaged on its way.
    """
    magic, kind, lane, generation, piece, coverage, length, step, of_payload, of_header = HEADER.unpack(data)
    if magic != MAGIC:
        raise WireError(f"ring frame with magic {bytes(magic)!r}, expected {MAGIC!r}")
    if of_header != check(memoryview(data)[: -_CHECK.size]):
        raise WireError("the header of a ring frame was damaged on its way")
    try:
        known = Kind(kind)
    except ValueError:
        raise WireError(f"ring frame of unknown kind {kind}") from None
    if length > MAX_PAYLOAD:
        raise WireError(f"ring frame of {length} bytes, more than {MAX_PAYLOAD}")
    return Header(known, generation, step, piece, coverage, length, bool(lane), of_payload)
