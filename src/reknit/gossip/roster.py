"""Members that many nodes agree on, and the rings they stand in.

A roster never changes and is shared: two views with the same digest have the same roster object, if they live in one
process. So a simulation of ten thousand nodes holds ten thousand names once, and rings are computed once.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from weakref import WeakValueDictionary

import xxhash

from .rumour import Rumour

PARTS: Final = 64
"""Parts of a view that are compared by digest."""


def part_of(name: str) -> int:
    """In which part of a view a member is."""
    return xxhash.xxh3_64_intdigest(name.encode()) % PARTS


def place_in(ring: int, name: str) -> int:
    """Where a member stands in a ring: the same for everybody, and drawn by nobody."""
    return xxhash.xxh3_64_intdigest(name.encode(), seed=ring + 1)


class Ring:
    """One ring over the present members of a roster: names in the order of their places."""

    __slots__ = ("_at", "names", "places")

    def __init__(self, number: int, names: Iterable[str]) -> None:
        ordered = sorted((place_in(number, name), name) for name in names)
        self.places = [place for place, _ in ordered]
        self.names = [name for _, name in ordered]
        self._at = {name: i for i, name in enumerate(self.names)}

    def after(self, place: int, name: str) -> Iterator[str]:
        """Members from a place on, once round, `name` itself left out."""
        at = self._at.get(name)
        start = bisect.bisect_right(self.places, place) if at is None else at + 1
        for i in range(start, start + len(self.names)):
            other = self.names[i % len(self.names)]
            if other != name:
                yield other

    def before(self, place: int, name: str) -> Iterator[str]:
        """Members from a place backwards, once round, `name` itself left out."""
        at = self._at.get(name)
        start = (bisect.bisect_left(self.places, place) if at is None else at) - 1
        for i in range(start, start - len(self.names), -1):
            other = self.names[i % len(self.names)]
            if other != name:
                yield other


class Roster:
    """Present members, shared and never changed.

    Attributes:
        entries: name -> the statement that holds.
        names: sorted.
        digest: of all entries.
        sums: digest of each part.
    """

    __slots__ = ("__weakref__", "_places", "_rings", "digest", "entries", "names", "sums")

    def __init__(self, entries: Mapping[str, Rumour]) -> None:
        self.entries = dict(entries)
        self.names = tuple(sorted(self.entries))
        sums = [0] * PARTS
        for rumour in self.entries.values():
            sums[part_of(rumour.name)] ^= rumour.digest()
        self.sums = tuple(sums)
        self.digest = 0
        for part in sums:
            self.digest ^= part
        self._rings: dict[int, Ring] = {}
        self._places: dict[tuple[str, int], str] | None = None

    def ring(self, number: int) -> Ring:
        """Return one of the rings."""
        found = self._rings.get(number)
        if found is None:
            found = self._rings[number] = Ring(number, self.names)
        return found

    def named_at(self, host: str, port: int) -> str | None:
        """Who listens there."""
        if self._places is None:
            self._places = {(r.host, r.port): r.name for r in self.entries.values()}
        return self._places.get((host, port))


_known: WeakValueDictionary[int, Roster] = WeakValueDictionary()


def shared(entries: Mapping[str, Rumour], digest: int) -> Roster:
    """Return the roster of these present members; the same object for the same digest."""
    found = _known.get(digest)
    if found is not None and len(found.entries) == len(entries):
        return found
    made = Roster(entries)
    _known[made.digest] = made
    return made
