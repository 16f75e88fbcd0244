"""Paths between hosts: latency, loss, duplication, reorder, one-way loss, partitions.

Hosts are numbers; nodes count from 0, the broker and the hubs have negative ones. Datagrams may be lost, doubled and
overtake each other; streams (TCP) are never lost, a lost segment comes a retransmission later, and everything behind it
waits. A path that lets nothing through blocks a stream until it is whole again.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection

LATENCY = (0.001, 0.003)
"""Seconds one way: 2 ms give or take 1 ms, evenly."""
NEAR = (0.0001, 0.0003)
"""The same between the broker and the services, which stand side by side."""
RETRANSMIT = 0.2
"""Seconds until a lost segment is sent again (Linux' least)."""
FOLLOWING = 0.25
"""Seconds until it is sent once more if that is lost too: the next heartbeat arrives and shows the gap."""
REORDER = (0.0, 0.02)
"""Extra seconds of a datagram that is overtaken."""
_MOST_LOSSES = 40
_BLOCKED = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Wall:
    """Nothing goes from one set of hosts to the other, in this direction."""

    sources: frozenset[int]
    targets: frozenset[int]


class Network:
    """What each datagram meets on its way.

    Attributes:
        loss: share of datagrams lost on every path.
        duplication: share that arrives twice.
        reorder: share that comes late.
        ingress: host -> share lost on the way in.
        egress: host -> share lost on the way out.
        sent: datagrams handed in.
        lost: of these, lost.
    """

    def __init__(self, chance: random.Random) -> None:
        self._random = chance.random
        self.loss = 0.0
        self.duplication = 0.0
        self.reorder = 0.0
        self.ingress: dict[int, float] = {}
        self.egress: dict[int, float] = {}
        self.sent = 0
        self.lost = 0
        self._sides: dict[int, int] = {}
        self._walls: list[Wall] = []

    # ------------------------------------------------------------------------------------------------------- faults

    def part(self, away: Collection[int], side: int = 1) -> None:
        """Cut these hosts off from all that are on another side; among themselves they talk."""
        self._sides.update(dict.fromkeys(away, side))

    def heal(self, hosts: Collection[int]) -> None:
        """End the partition of these hosts."""
        for host in hosts:
            self._sides.pop(host, None)

    def wall(self, sources: Collection[int], targets: Collection[int]) -> Wall:
        """Let nothing go from these to those; returns what `tear_down` wants."""
        wall = Wall(frozenset(sources), frozenset(targets))
        self._walls.append(wall)
        return wall

    def tear_down(self, wall: Wall) -> None:
        """Let it go again."""
        self._walls.remove(wall)

    # -------------------------------------------------------------------------------------------------------- paths

    def loss_between(self, source: int, target: int) -> float:
        """Share of what is lost on this path, 1 if nothing goes through."""
        sides = self._sides
        if sides and sides.get(source, 0) != sides.get(target, 0):
            return _BLOCKED
        for wall in self._walls:
            if source in wall.sources and target in wall.targets:
                return _BLOCKED
        loss = self.loss
        if self.ingress or self.egress:
            through = (1.0 - loss) * (1.0 - self.egress.get(source, 0.0)) * (1.0 - self.ingress.get(target, 0.0))
            loss = 1.0 - through
        return loss

    def is_open(self, source: int, target: int) -> bool:
        """True if something goes through in both directions, so that a stream makes progress."""
        return self.loss_between(source, target) < _BLOCKED and self.loss_between(target, source) < _BLOCKED

    def datagram(self, source: int, target: int) -> tuple[float, ...]:
        """Return after how many seconds a datagram arrives: never, once or twice."""
        self.sent += 1
        draw = self._random
        loss = self.loss_between(source, target)
        if loss and draw() < loss:
            self.lost += 1
            return ()
        delay = LATENCY[0] + (LATENCY[1] - LATENCY[0]) * draw()
        if self.reorder and draw() < self.reorder:
            delay += REORDER[0] + (REORDER[1] - REORDER[0]) * draw()
        if self.duplication and draw() < self.duplication:
            return delay, delay + LATENCY[1] * draw()
        return (delay,)

    def segment(self, source: int, target: int) -> float:
        """Return the seconds that a message of a stream takes on an open path."""
        draw = self._random
        if source < 0 and target < 0:
            return NEAR[0] + (NEAR[1] - NEAR[0]) * draw()
        delay = LATENCY[0] + (LATENCY[1] - LATENCY[0]) * draw()
        loss = self.loss_between(source, target)
        if loss and draw() < loss:
            delay += RETRANSMIT
            for _ in range(_MOST_LOSSES):
                if draw() >= loss:
                    break
                delay += FOLLOWING
        return delay
