"""Where nodes stand and how far apart they are, so that the ring leaves a host, a rack, a zone once, not at every step.

What a node says of its place (`--label rack=r7`) counts before what agents measure: a rack shares a switch whatever a
few pings say. Round trips put in order what the labels leave open. They are rounded up to ½, 1, 2, 4 … ms: less than a
factor of two is chance, and no reason to leave the order of the names.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from .view import Node, Record, Sight

LEVELS = ("region", "zone", "rack")
"""Labels that say where a node stands, from wide to narrow. Nodes without one of them stand together."""
LEAST_MS = 0.5
"""Round trips below this are as good as each other."""

Place = tuple[str, ...]
"""A node's place from wide to narrow: its labels of `LEVELS`, its host, its name."""


@functools.lru_cache(maxsize=1 << 16)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts n2 before n10."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts)


@dataclasses.dataclass(frozen=True, slots=True)
class Topology:
    """What is known of the nodes.

    Attributes:
        nodes: by name; one that is missing stands without labels on a host of its own.
        rtt: node -> node -> round trip in milliseconds, as the first one measured it.
    """

    nodes: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    rtt: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def place(self, node: str) -> Place:
        """Return where a node stands."""
        known = self.nodes.get(node) or Node(node, 0)
        return (*(known.labels.get(level, "") for level in LEVELS), known.host or node, node)

    def nearness(self, node: str, other: str) -> int:
        """Return how many levels two nodes share, counted from the widest; that of a node to itself is the greatest."""
        shared = 0
        for a, b in zip(self.place(node), self.place(other), strict=True):
            if a != b:
                break
            shared += 1
        return shared

    def order(self, nodes: Iterable[str]) -> list[str]:
        """Put nodes in ring order: each rack, host, … in one piece, what is near by measure side by side."""
        return self._arranged(sorted(set(nodes), key=natural), 0, closed=True)

    def _arranged(self, nodes: list[str], level: int, *, closed: bool) -> list[str]:
        if len(nodes) < 2:
            return nodes
        parts: dict[str, list[str]] = {}
        for node in nodes:
            parts.setdefault(self.place(node)[level], []).append(node)
        pieces = list(parts.values())
        if len(pieces) == 1:
            return self._arranged(nodes, level + 1, closed=closed)
        chain = _chain(len(pieces), self._apart(pieces), closed=closed)
        return [node for i in chain for node in self._arranged(pieces[i], level + 1, closed=False)]

    def _apart(self, pieces: Sequence[Sequence[str]]) -> dict[tuple[int, int], float]:
        """Pairs of pieces, lower number first -> least round trip between their nodes, where one was measured."""
        piece_of = {node: i for i, nodes in enumerate(pieces) for node in nodes}
        apart: dict[tuple[int, int], float] = {}
        for node, i in piece_of.items():
            for other, ms in self.rtt.get(node, {}).items():
                j = piece_of.get(other, i)
                if j != i and 0 <= ms < math.inf:
                    pair = (min(i, j), max(i, j))
                    apart[pair] = min(rounded(ms), apart.get(pair, math.inf))
        return apart


def rounded(ms: float) -> float:
    """Round milliseconds up to ½, 1, 2, 4, …."""
    return LEAST_MS * 2.0 ** max(0, math.ceil(math.log2(ms / LEAST_MS))) if ms > LEAST_MS else LEAST_MS


def _chain(count: int, apart: Mapping[tuple[int, int], float], *, closed: bool) -> list[int]:
    """Put pieces in an order with short links: always on to the nearest, unless their own order is as short.

    Args:
        count: how many.
        apart: pair -> distance; a pair that is missing counts as the median of the others.
        closed: the last is linked to the first.
    """
    own = list(range(count))
    if not apart:
        return own
    usual = statistics.median(apart.values())

    def far(i: int, j: int) -> float:
        return apart.get((min(i, j), max(i, j)), usual)

    def length(order: Sequence[int]) -> float:
        links = zip(order, [*order[1:], order[0]] if closed else order[1:], strict=False)
        return sum(far(i, j) for i, j in links)

    chain, left = [0], own[1:]
    while left:
        here = chain[-1]
        nearest = min(left, key=lambda j: (far(here, j), j))
        left.remove(nearest)
        chain.append(nearest)
    return chain if length(chain) < length(own) else own


def of(record: Record, sight: Sight | None = None) -> Topology:
    """Return what is known of the nodes; without `sight` only what is on the log, the same for every reader of it."""
    return Topology(record.nodes, sight.rtt if sight is not None else {})
