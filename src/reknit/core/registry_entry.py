"""What the registry knows of one service, agent or worker, and how healthy that is. Pure.

Every process renews what it says of itself; a broker that stores it adds when. So an entry is as true as it is young.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import msgspec

Health = Literal["passing", "warning", "critical"]
KINDS = ("service", "agent", "worker")
MISSED = 3.0
"""Renewals that may fail to come until an entry is critical."""
KEPT = 12.0
"""Renewals that may fail to come until it is forgotten."""
GONE = "not renewed: its process, its machine or its connection is gone"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says of itself, or an agent of its worker."""

    kind: Literal["service", "agent", "worker"]
    name: str
    """Of a service its kind, of an agent its node, of a worker its id."""
    id: str
    """Tells this life from others of the same name."""
    node: str = ""
    """Host or node it runs on."""
    job: str = ""
    """Empty: it serves any job."""
    address: str = ""
    """Where it can be reached, if anywhere but over the broker."""
    version: str = ""
    pid: int = 0
    health: Health = "passing"
    reason: str = ""
    """Why it is not passing, else what it does."""
    since: float = 0.0
    """Seconds since the epoch, by its own clock: for people."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What one key of the registry holds: all that one process says."""

    life: str
    """Of the process, to tell its own writing from another's."""
    every: float
    """Seconds between two renewals."""
    entries: tuple[Entry, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """An entry with its age.

    Attributes:
        key: of the card it stands on.
        every: seconds between two renewals.
        age: seconds since the newest one.
    """

    key: str
    entry: Entry
    every: float
    age: float

    @property
    def health(self) -> Health:
        """`passing`, `warning` or `critical`."""
        return "critical" if self.age > MISSED * self.every else self.entry.health

    @property
    def reason(self) -> str:
        """Why, in words."""
        return GONE if self.age > MISSED * self.every else self.entry.reason

    @property
    def forgotten(self) -> bool:
        """True if it is so old that nobody is expected to renew it any more."""
        return self.age > KEPT * self.every


def encode(card: Card) -> bytes:
    """Return a card as JSON, so that any tool can read the bucket."""
    return msgspec.json.encode(card)


def decode(data: bytes) -> Card | None:
    """Return the card that a value holds; None if it is none."""
    try:
        return msgspec.json.decode(data, type=Card)
    except msgspec.MsgspecError:
        return None
