"""Anti-entropy: two views are compared part by part, and what is held of the parts that differ is sent in full."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Final

from .roster import PARTS
from .rumour import Rumour

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
