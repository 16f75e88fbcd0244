"""Anti-entropy: two views are compared part by part, and what is held of the parts that differ is sent in full."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from typing import Final

from reknit.core.address import Address

from .hearsay import Hearsay
from .message import Ping, Sync
from .outgoing import Outgoing
from .preset import Preset
from .roster import PARTS
from .rumour import Rumour
from .view import View

AT_ONCE: Final = 64
"""Packets sent in answer to one comparison at most: what a socket's buffer takes."""


def differing(mine: tuple[int, ...], theirs: tuple[int, ...]) -> frozenset[int]:
    """Return the parts in which two views differ; none if the sums make no sense."""
    if len(theirs) != PARTS:
        return frozenset()
    return frozenset(i for i in range(PARTS) if mine[i] != theirs[i])


def batches(held: Iterable[Rumour], room: int, chance: random.Random) -> Iterator[tuple[Rumour, ...]]:
    """Yield statements in batches of so many bytes, at most `AT_ONCE` of them, beginning at a drawn place."""
    everything = list(held)
    start = chance.randrange(len(everything)) if everything else 0
    batch: list[Rumour] = []
    size = sent = 0
    for rumour in (*everything[start:], *everything[:start]):
        if size + rumour.size > room:
            yield tuple(batch)
            batch, size, sent = [], 0, sent + 1
            if sent == AT_ONCE:
                return
        batch.append(rumour)
        size += rumour.size
    if batch:
        yield tuple(batch)


class Syncing:
    """One node's comparisons with others, and its knocks where a half that was cut off may be.

    Args:
        view: what holds of all members.
        outgoing: where packets go.
        hearsay: what this node says of itself, and when there was news.
        preset: figures of the protocol.
        chance: for drawing.
        seeds: addresses to join through.
    """

    def __init__(
        self,
        view: View,
        outgoing: Outgoing,
        hearsay: Hearsay,
        *,
        preset: Preset,
        chance: random.Random,
        seeds: Iterable[Address],
    ) -> None:
        self._view = view
        self._outgoing = outgoing
        self._hearsay = hearsay
        self._preset = preset
        self._chance = chance
        self._seeds = [s for s in seeds if s != outgoing.me.address]
        self._synced = -math.inf
        for address in self._seeds:
            self._knock(address)

    def meet(self, addresses: Iterable[Address]) -> None:
        """Get to know members at these addresses: those that nobody known listens at are knocked at."""
        for address in addresses:
            if address == self._outgoing.me.address or address in self._seeds:
                continue
            self._seeds.append(address)
            if self._view.named_at(address) is None:
                self._knock(address)

    def compare(self, name: str, digest: int, now: float) -> None:
        """Two views: if they differ and no news is on its way that explains it, exchange what differs."""
        hearsay, least = self._hearsay, self._preset.sync
        if digest == self._view.digest:
            hearsay.settled = True
        elif now - self._synced >= least and (not hearsay.settled or now - hearsay.news >= least):
            self._synced = now
            self._outgoing.send(name, (Sync(self._view.sums()),), hearsay.mine)

    def answer(self, name: str, source: Address, sync: Sync) -> None:
        """Send what differs from the view that a member has sent."""
        mine = self._view.sums()
        differ = differing(mine, sync.sums)
        if not sync.answer:
            self._outgoing.answer(name, source, Sync(mine, answer=True))
        held = self._view.parts(differ) if differ else ()
        for batch in batches(held, self._outgoing.room(name), self._chance):
            self._outgoing.post_rumours(source, name, batch)

    def reconnect(self) -> None:
        """Knock at one who is held for dead, or at a seed where nobody known listens: halves find each other again."""
        doors: list[Rumour | Address] = [*self._view.lost()]
        doors += [s for s in self._seeds if self._view.named_at(s) is None]
        if not doors:
            return
        door = self._chance.choice(doors)
        if isinstance(door, Rumour):
            self._outgoing.send(door.name, (Ping(0, self._view.digest),), door)
        else:
            self._knock(door)

    def _knock(self, address: Address) -> None:
        self._outgoing.post(address, "", (Sync(self._view.sums()),), self._hearsay.mine)
