"""Whose datagrams opened lately, and whose were sealed with a key that is not known here. Pure.

    reception.opened(now, source)
    reception.refused(now, source)      of known nodes only: a stranger may send what it likes
    told = reception.tally(now)         told.wrong: our keys are not those of most others

A sender whose keys are wrong is refused by all, and refuses all; who has the right ones opens what most others send. So
each node can tell by itself on which side it is, but for two that have nobody else: then either may be wrong.
"""

from __future__ import annotations

import dataclasses

from reknit.core.address import Address

SPAN = 10.0
"""Seconds that are looked back, up to twice as many: twice the time between two knocks at one who is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tally:
    """What was received lately.

    Attributes:
        refused: datagrams of known nodes that were sealed with a key not known here.
        refused_of: nodes that they came from.
        opened_of: nodes whose datagrams opened.
    """

    refused: int = 0
    refused_of: int = 0
    opened_of: int = 0

    @property
    def wrong(self) -> bool:
        """True if most others seal with keys that are not known here."""
        return self.refused_of > self.opened_of


class Reception:
    """Counts of this span and of the one before."""

    def __init__(self) -> None:
        self._ends = 0.0
        self._refused: tuple[dict[Address, int], dict[Address, int]] = ({}, {})
        self._opened: tuple[set[Address], set[Address]] = (set(), set())

    def opened(self, now: float, source: Address) -> None:
        """A datagram opened."""
        self._turn(now)
        self._opened[0].add(source)

    def refused(self, now: float, source: Address) -> None:
        """A datagram of a known node was sealed with a key that is not known here."""
        self._turn(now)
        self._refused[0][source] = self._refused[0].get(source, 0) + 1

    def tally(self, now: float) -> Tally:
        """Return what was received lately; a node that is refused now and opened before has changed its keys."""
        self._turn(now)
        new, old = self._refused
        refused = new.keys() | (old.keys() - self._opened[0])
        count = sum(new.values()) + sum(old[source] for source in old.keys() & refused)
        opened = (self._opened[0] | self._opened[1]) - refused
        return Tally(count if refused else 0, len(refused), len(opened))

    def _turn(self, now: float) -> None:
        if now < self._ends:
            return
        long_ago = now - self._ends >= SPAN
        self._refused = ({}, {} if long_ago else self._refused[0])
        self._opened = (set(), set() if long_ago else self._opened[0])
        self._ends = now + SPAN
