"""Packets on their way out; each takes along the rumours that fit."""

from __future__ import annotations

from typing import Final

from reknit.core.address import Address

from .identity import Self
from .message import Message, Packet, envelope, size_of
from .rumour import Rumour, State
from .spread import Spread
from .view import View

ROOM: Final = 1400 - 64
"""Bytes of a packet, without the seal."""


class Outgoing:
    """What one node sends.

    Args:
        me: who this node is.
        view: where members listen.
        spread: rumours to take along.

    Attributes:
        me: the same, as it is now: a node takes a greater epoch if its clock was set back.
    """

    def __init__(self, me: Self, view: View, spread: Spread) -> None:
        self.me = me
        self._view = view
        self._spread = spread
        self._packets: list[tuple[Address, Packet]] = []

    def take(self) -> list[tuple[Address, Packet]]:
        """Return the packets to send, once."""
        packets, self._packets = self._packets, []
        return packets

    def send(self, name: str, parts: tuple[Message, ...], first: Rumour | None = None) -> None:
        """Send to a member, if it is known; what is held against it goes along, unless `first` is to."""
        held = self._view.get(name)
        if held is not None:
            if first is None and held.state:
                first = held
            self.post((held.host, held.port), name, parts, first)

    def answer(self, name: str, source: Address, part: Message) -> None:
        """Send to where a packet of this member came from; what is held against it goes along."""
        self.post(source, name, (part,), self.known_bad(name))

    def post(self, address: Address, name: str, parts: tuple[Message, ...], first: Rumour | None) -> None:
        """Send to an address: parts, one rumour in any case, and others that fit."""
        rumours: tuple[Rumour, ...] = ()
        if first is not None or len(self._spread):
            rumours = self._spread.take(self.room(name) - sum(map(size_of, parts)), self._view.size, first)
        self._packets.append((address, Packet(self.me.name, self.me.epoch, name, parts, rumours)))

    def post_rumours(self, address: Address, name: str, rumours: tuple[Rumour, ...]) -> None:
        """Send these rumours and nothing else; they fit."""
        self._packets.append((address, Packet(self.me.name, self.me.epoch, name, (), rumours)))

    def room(self, name: str) -> int:
        """Bytes that a packet to this member has for parts and rumours."""
        return ROOM - envelope(self.me.name, name)

    def known_bad(self, name: str) -> Rumour | None:
        """What is held against a member, so that it hears of it and can refute."""
        held = self._view.get(name)
        return held if held is not None and held.state != State.ALIVE else None
