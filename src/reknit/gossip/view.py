"""What one node holds of all members: a shared roster, and what was heard since."""

from __future__ import annotations

from collections.abc import Iterator

from reknit.core.address import Address

from .roster import PARTS, Roster, part_of, place_in, shared
from .rumour import Rumour, State, newer

REMEMBERED = 4096
"""Members held for dead whose addresses are kept, to knock at."""


class View:
    """Members and their states; statements only ever get newer.

    Attributes:
        digest: 64 bits of who is there; equal views have equal ones.
        size: members that are there, suspected or not.
        version: grows when somebody comes or goes.
    """

    def __init__(self, roster: Roster | None = None) -> None:
        self._roster = roster if roster is not None else shared({}, 0)
        self._changed: dict[str, Rumour] = {}
        self._extra: list[str] = []  # present and not in the roster
        self._buried: dict[str, float] = {}  # name -> when it was held for gone, in this order
        self._lost: dict[str, Address] = {}  # the dead, for knocking
        self._places: dict[Address, str] = {}
        self.digest = self._roster.digest
        self.size = len(self._roster.names)
        self.version = 0
        self.changed_at = 0.0

    def get(self, name: str) -> Rumour | None:
        """What holds about a member, None if nothing is known."""
        return self._changed.get(name) or self._roster.entries.get(name)

    def present(self, name: str) -> bool:
        """True if the member is there, suspected or not."""
        found = self.get(name)
        return found is not None and found.present

    def put(self, rumour: Rumour, now: float) -> bool:
        """Take a statement in; return False if what is known is as new. News of the end of a stranger are no news."""
        before = self.get(rumour.name)
        if not newer(rumour, before) or (before is None and not rumour.present):
            return False
        was = before is not None and before.present
        self._changed[rumour.name] = rumour
        self.digest ^= rumour.digest() ^ (before.digest() if before is not None else 0)
        if rumour.present:
            self._buried.pop(rumour.name, None)
            self._lost.pop(rumour.name, None)
            self._places[rumour.address] = rumour.name
        else:
            self._buried.setdefault(rumour.name, now)
        if was != rumour.present:
            self._count(rumour, now)
        return True

    def _count(self, rumour: Rumour, now: float) -> None:
        self.version += 1
        self.changed_at = now
        outside = rumour.name not in self._roster.entries
        if rumour.present:
            self.size += 1
            if outside:
                self._extra.append(rumour.name)
        else:
            self.size -= 1
            if outside and rumour.name in self._extra:
                self._extra.remove(rumour.name)

    def named_at(self, address: Address) -> str | None:
        """Who of those who are there listens at an address."""
        name = self._places.get(address) or self._roster.named_at(*address)
        if name is None or not self.present(name):
            return None
        held = self.get(name)
        return name if held is not None and held.address == address else None

    def names(self) -> Iterator[str]:
        """All who are there."""
        for name in self._roster.names:
            found = self._changed.get(name)
            if found is None or found.present:
                yield name
        yield from self._extra

    def known(self) -> Iterator[Rumour]:
        """All that is held, the gone included as long as they are remembered."""
        for name, rumour in self._roster.entries.items():
            if name not in self._changed:
                yield rumour
        yield from self._changed.values()

    def count(self) -> int:
        """Places to draw from with `at`; some may be of members that are gone."""
        return len(self._roster.names) + len(self._extra)

    def at(self, index: int) -> str:
        """Return the name at a place; ask `present` then."""
        names = self._roster.names
        return names[index] if index < len(names) else self._extra[index - len(names)]

    def successors(self, name: str, rings: int) -> tuple[str, ...]:
        """Return whom a member watches: the next one that is there in each ring, each once."""
        return self._neighbours(name, rings, forward=True)

    def predecessors(self, name: str, rings: int) -> tuple[str, ...]:
        """Return who watches a member."""
        return self._neighbours(name, rings, forward=False)

    def _neighbours(self, name: str, rings: int, *, forward: bool) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for number in range(rings):
            mine = place_in(number, name)
            ring = self._roster.ring(number)
            walk = ring.after(mine, name) if forward else ring.before(mine, name)
            best = next((other for other in walk if self.present(other)), None)
            for other in self._extra:
                if other != name and (best is None or self._nearer(number, mine, other, best, forward)):
                    best = other
            if best is not None:
                found[best] = None
        return tuple(found)

    @staticmethod
    def _nearer(ring: int, mine: int, other: str, best: str, forward: bool) -> bool:
        one, two = place_in(ring, other) - mine, place_in(ring, best) - mine
        return (one % 2**64 < two % 2**64) if forward else (-one % 2**64 < -two % 2**64)

    def sums(self) -> tuple[int, ...]:
        """Digest of each part."""
        sums = list(self._roster.sums)
        for name, rumour in self._changed.items():
            before = self._roster.entries.get(name)
            sums[part_of(name)] ^= rumour.digest() ^ (before.digest() if before is not None else 0)
        return tuple(sums)

    def parts(self, which: frozenset[int]) -> Iterator[Rumour]:
        """Statements in some of the parts."""
        if len(which) == PARTS:
            yield from self.known()
            return
        for rumour in self.known():
            if part_of(rumour.name) in which:
                yield rumour

    def forget(self, before: float) -> None:
        """Drop what was said of the gone up to then; addresses of the dead are kept a little longer, to knock at."""
        while self._buried:
            name, at = next(iter(self._buried.items()))
            if at > before:
                return
            del self._buried[name]
            held = self._changed.get(name)
            if held is None:
                continue
            if held.state == State.DEAD:
                self._lost[name] = held.address
            if name not in self._roster.entries:
                del self._changed[name]
        while len(self._lost) > REMEMBERED:
            del self._lost[next(iter(self._lost))]

    def lost(self) -> tuple[Rumour | Address, ...]:
        """Who is held for dead: the statement, or once that is forgotten, the address."""
        buried = tuple(r for n in self._buried if (r := self._changed.get(n)) is not None and r.state == State.DEAD)
        return (*buried, *self._lost.values())

    def settle(self, now: float, quiet: float) -> None:
        """Make a roster of what is held, once nobody has come or gone for so many seconds."""
        if not self._changed or self._buried or now - self.changed_at < quiet:
            return
        if any(r.state == State.SUSPECT for r in self._changed.values()):
            return  # a roster is what others hold too
        self._roster = shared({n: r for n in self.names() if (r := self.get(n)) is not None}, self.digest)
        self._changed, self._extra, self._places = {}, [], {}
