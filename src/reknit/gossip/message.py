"""What a packet is made of. The codec makes datagrams of packets; the simulator passes them as they are."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from .rumour import Rumour


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Are you there? The answer is an `Ack` of the same number. `view` is the digest of the sender's view, 0 untold."""

    seq: int
    view: int = 0


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """I am. Also passed on for a member that was pinged on behalf of another."""

    seq: int
    view: int = 0


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Ping that member for me; pass its `Ack` on, or send a `Nack` if none comes."""

    seq: int
    name: str
    host: str
    port: int


class Nack(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """I have asked, it did not answer: so you and I hear each other."""

    seq: int


class Sync(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """My view, as the digest of each of its parts; who gets it sends the members of parts that differ.

    `answer`: it is the answer to one, and gets none itself.
    """

    sums: tuple[int, ...]
    answer: bool = False


Message: TypeAlias = Ping | Ack | Ask | Nack | Sync


class Packet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One datagram's content.

    Attributes:
        of: name of the sender.
        epoch: of the sender's process.
        to: name of the receiver; empty if only its address is known. Others ignore the packet.
        parts: messages.
        rumours: ride along.
    """

    of: str
    epoch: int
    to: str
    parts: tuple[Message, ...] = ()
    rumours: tuple[Rumour, ...] = ()

    @property
    def size(self) -> int:
        """Bytes without the seal, at most."""
        return envelope(self.of, self.to) + sum(map(size_of, self.parts)) + sum(r.size for r in self.rumours)


def envelope(of: str, to: str) -> int:
    """Bytes of an empty packet, at most."""
    return len(of) + len(to) + 24


def size_of(part: Message) -> int:
    """Bytes of a message, at most."""
    if isinstance(part, Sync):
        return 8 + 9 * len(part.sums)
    if isinstance(part, Ask):
        return 24 + len(part.name) + len(part.host)
    return 24
