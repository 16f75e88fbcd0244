"""A network of gossip cores in virtual time: packets as objects or sealed, delay, loss, cuts. Seeded."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from reknit.core.address import Address
from reknit.gossip.gossip import Gossip
from reknit.gossip.happening import Happening
from reknit.gossip.identity import Self
from reknit.gossip.message import Packet
from reknit.gossip.preset import TRAIN, Preset
from reknit.gossip.roster import Roster, shared
from reknit.gossip.rumour import Rumour

PORT = 7000


def address(name: str) -> Address:
    """Where a node listens in this network: the host has its name."""
    return name, PORT


def roster(names: Iterable[str]) -> Roster:
    """Nodes that all know each other from the start."""
    entries = {n: Rumour(n, 1, 0, 0, *address(n), n) for n in names}
    digest = 0
    for rumour in entries.values():
        digest ^= rumour.digest()
    return shared(entries, digest)


@dataclass
class Net:
    """Nodes by name, all driven by one queue of virtual events."""

    seed: int = 0
    preset: Preset = TRAIN
    loss: float = 0.0
    now: float = 0.0
    nodes: dict[str, Gossip] = field(default_factory=dict)
    happened: list[tuple[float, str, Happening]] = field(default_factory=list)
    passes: Callable[[str, str], bool] = lambda _a, _b: True
    """May a packet go from one node to the other?"""
    stopped: set[str] = field(default_factory=set)
    sent: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._queue: list[tuple[float, int, str, Packet | None, str]] = []
        self._count = 0
        self._wakes: dict[str, float] = {}

    def add(self, name: str, *, epoch: int = 1, known: Roster | None = None, seeds: Iterable[str] = ()) -> Gossip:
        """Start a node."""
        node = Gossip(
            Self(name, epoch, address(name)),
            preset=self.preset,
            seed=self._chance.randrange(2**32),
            now=self.now,
            seeds=[address(s) for s in seeds],
            roster=known,
        )
        self.nodes[name] = node
        self.stopped.discard(name)
        self._flush(name)
        return node

    def crowd(self, size: int) -> list[str]:
        """Start so many nodes that know each other."""
        names = [f"n{i}" for i in range(size)]
        known = roster(names)
        for name in names:
            self.add(name, known=known)
        return names

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self._queue and self._queue[0][0] <= until:
            self.now, _, name, packet, of = heapq.heappop(self._queue)
            node = self.nodes.get(name)
            if node is None:
                continue
            if name in self.stopped:
                if packet is None:  # its timers wait; packets to it are lost
                    self._wake(name, self.now + 0.05)
                continue
            if packet is None and self._wakes.get(name) != self.now:
                continue  # it was put off or brought forward since
            if packet is not None:
                node.on_packet(self.now, packet, address(of))
            elif node.due() <= self.now + 1e-9:
                node.on_timer(self.now)
            self._flush(name)
        self.now = until

    def until(self, true: Callable[[], bool], most: float = 120.0) -> float:
        """Let time pass until something holds; returns how long that took, fails if it takes longer than that."""
        began = self.now
        while not true():
            assert self.now - began < most, "it never came true"
            self.run(0.05)
        return self.now - began

    def crash(self, *names: str) -> None:
        """End nodes without a word."""
        for name in names:
            del self.nodes[name]

    def agree(self) -> bool:
        """Do all who run hold the same view, of exactly those who run?"""
        return len({n.digest for n in self.nodes.values()}) == 1 and all(
            set(n.alive()) == set(self.nodes) for n in self.nodes.values()
        )

    def said(self, what: str) -> list[tuple[str, str]]:
        """Who said that of whom, in order."""
        return [(who, h.name) for _, who, h in self.happened if h.what == what]

    def _flush(self, name: str) -> None:
        node = self.nodes[name]
        for (to, _), packet in node.transmit():
            self.sent += 1
            if self.passes(name, to) and self._chance.random() >= self.loss:
                self._push(self.now + 0.001 + 0.002 * self._chance.random(), to, packet, name)
        self.happened += [(self.now, name, h) for h in node.happened()]
        self._wake(name, max(node.due(), self.now))

    def _wake(self, name: str, at: float) -> None:
        if self._wakes.get(name) != at or at == self.now:
            self._wakes[name] = at
            self._push(at, name, None, "")

    def _push(self, at: float, to: str, packet: Packet | None, of: str) -> None:
        if at == float("inf"):
            return
        self._count += 1
        heapq.heappush(self._queue, (at, self._count, to, packet, of))
