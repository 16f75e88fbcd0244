"""SWIM's turn: one member after the other is pinged; who does not answer is asked for through others.

In each round everybody is probed once, in an order of the node's own: steps of a stride that has no common divisor with
the number of members, which is a permutation that needs no memory. So the worst case is bounded by two rounds.
"""

from __future__ import annotations

import dataclasses
import math
import random

from .rumour import Rumour
from .view import View


@dataclasses.dataclass(slots=True)
class Probe:
    """A probe under way.

    Attributes:
        of: what held of the member when it began.
        seq: number of its pings.
        asked_at: when others are asked.
        ends_at: when it is suspected.
        helpers: how many were asked.
        nacks: how many of them said that they got no answer.
        answered: an acknowledgement came.
    """

    of: Rumour
    seq: int
    asked_at: float
    ends_at: float
    helpers: int = 0
    nacks: int = 0
    answered: bool = False


class Turn:
    """Whose turn it is."""

    def __init__(self, me: str, chance: random.Random) -> None:
        self._me = me
        self._chance = chance
        self._size = 0
        self._left = 0
        self._at = 0
        self._stride = 1

    def next(self, view: View) -> str | None:
        """Return the next member to probe, None if there is no other."""
        for _ in range(view.count() + self._left + 1):
            if self._left == 0 or self._size > view.count():
                self._begin(view.count())
            if self._size == 0:
                return None
            self._left -= 1
            self._at = (self._at + self._stride) % self._size
            name = view.at(self._at)
            if name != self._me and view.present(name):
                return name
        return None

    def _begin(self, size: int) -> None:
        self._size = self._left = size
        if size == 0:
            return
        self._at = self._chance.randrange(size)
        self._stride = self._chance.randrange(1, size) if size > 1 else 1
        while math.gcd(self._stride, size) != 1:
            self._stride = self._stride % size + 1


def drawn(view: View, chance: random.Random, number: int, but: frozenset[str]) -> list[str]:
    """Draw up to so many different members that are there, without some."""
    size = view.count()
    found: dict[str, None] = {}
    if size <= 2 * number + len(but):
        there = [n for n in view.names() if n not in but]
        return chance.sample(there, min(number, len(there)))
    for _ in range(8 * number):
        name = view.at(chance.randrange(size))
        if name not in but and view.present(name):
            found[name] = None
            if len(found) == number:
                break
    return list(found)
