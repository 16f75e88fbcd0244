"""The baseline: memberlist's rules with its settings for a LAN, in the same clock and network.

What is there: probes in shuffled round robin (direct, through three others, over TCP), suspicion with confirmations,
refutation, the buddy system, own health, gossip with retransmissions limited by log n. What is left out: the full state
exchange every 30 s and more, joins and leaves, encryption. After hashicorp/memberlist (config.go, state.go,
suspicion.go, awareness.go, queue.go). Views are a shared baseline (all alive) and what differs.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Collection, Iterator
from typing import Literal, TypeAlias

from .chance import Chance
from .clock import Clock
from .network import Network

PROBE_INTERVAL = 1.0
PROBE_TIMEOUT = 0.5
INDIRECT = 3
SUSPICION_MULT = 4
SUSPICION_MAX = 6
RETRANSMIT_MULT = 4
GOSSIP_INTERVAL = 0.2
GOSSIP_NODES = 3
AWARENESS = 8
PACKET = 1400
SAID = 60
"""Bytes of one rumour."""
_UDP = 28
_SIZES = {"ping": 70, "ack": 40, "ask": 80, "nack": 20, "gossip": 4}

State: TypeAlias = Literal["alive", "suspect", "dead"]


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """One statement: this member, in this incarnation, is so, says somebody."""

    member: int
    incarnation: int
    state: State
    by: int


@dataclasses.dataclass(frozen=True, slots=True)
class Packet:
    """One datagram."""

    kind: Literal["ping", "ack", "ask", "nack", "gossip"]
    of: int
    seq: int
    about: int
    rumours: tuple[Said, ...]


@dataclasses.dataclass(slots=True)
class _Probe:
    of: int
    seq: int
    answered: bool = False
    asked: int = 0
    nacks: int = 0


@dataclasses.dataclass(slots=True)
class _Suspicion:
    incarnation: int
    since: float
    by: set[int]
    deadline: float = 0.0


class Peer:
    """One node with memberlist."""

    def __init__(self, group: Memberlist, number: int, chance: random.Random) -> None:
        self._group = group
        self._clock = group.clock
        self._random = chance
        self.number = number
        self.up = True
        self.starved: tuple[float, float] | None = None
        self.incarnation = 0
        self.score = 0
        self.dead: set[int] = set()
        self.changes: list[float] = []
        self._known: dict[int, tuple[State, int]] = {}  # of whom it is not (alive, 0)
        self._suspicions: dict[int, _Suspicion] = {}
        self._queue: dict[int, tuple[int, int, Said]] = {}  # member -> (transmits, minus its number, what)
        self._told = 0
        self._seq = 0
        self._probe: _Probe | None = None
        self._relays: dict[int, tuple[int, int]] = {}
        self._turn = self._turns()
        self._clock.after(PROBE_INTERVAL * chance.random(), self._begin_probe)
        self._clock.after(GOSSIP_INTERVAL * chance.random(), self._gossip)

    # --------------------------------------------------------------------------------------------------------- probes

    def _turns(self) -> Iterator[int]:
        size = self._group.size
        while True:
            stride = self._random.randrange(1, size)
            while math.gcd(stride, size) != 1:
                stride = stride % size + 1
            at = self._random.randrange(size)
            for _ in range(size):
                at = (at + stride) % size
                if at != self.number and at not in self.dead:
                    yield at
            if len(self.dead) >= size - 1:
                return

    def _begin_probe(self) -> None:
        if not self.up:
            return
        target = next(self._turn, None)
        if target is None:
            return
        self._seq += 1
        self._probe = probe = _Probe(target, self._seq)
        state, incarnation = self._known.get(target, ("alive", 0))
        buddy = (Said(target, incarnation, "suspect", self.number),) if state == "suspect" else ()
        self._send(target, "ping", probe.seq, target, buddy)
        self._clock.after(PROBE_TIMEOUT, self._ask_others, probe)
        self._clock.after(PROBE_INTERVAL * (self.score + 1), self._end_probe, probe)

    def _ask_others(self, probe: _Probe) -> None:
        if not self.up or probe.answered:
            return
        for helper in self._drawn(INDIRECT, probe.of):
            probe.asked += 1
            self._send(helper, "ask", probe.seq, probe.of, ())
        took = self._group.dial(self.number, probe.of)
        if took is not None:
            self._clock.after(took, self._answered, probe)

    def _answered(self, probe: _Probe) -> None:
        probe.answered = True

    def _end_probe(self, probe: _Probe) -> None:
        if not self.up:
            return
        if probe.answered:
            self.score = max(0, self.score - 1)
        else:
            missing = probe.asked - probe.nacks if probe.asked else 1
            self.score = min(AWARENESS - 1, self.score + missing)
            state, incarnation = self._known.get(probe.of, ("alive", 0))
            if state != "dead":
                self._hear(Said(probe.of, incarnation, "suspect", self.number))
        self._begin_probe()

    def _drawn(self, number: int, but: int) -> list[int]:
        found: list[int] = []
        for _ in range(8 * number):
            other = self._random.randrange(self._group.size)
            if other not in (self.number, but) and other not in self.dead and other not in found:
                found.append(other)
                if len(found) == number:
                    break
        return found

    # -------------------------------------------------------------------------------------------------------- packets

    def receive(self, packet: Packet) -> None:
        """A packet arrives."""
        if not self.up:
            return
        if self.starved is None:
            self._take(packet)
        else:
            least, most = self.starved
            self._clock.after(least + (most - least) * self._random.random(), self._take, packet)

    def _take(self, packet: Packet) -> None:
        if not self.up:
            return
        for said in packet.rumours:
            self._hear(said)
        if packet.kind == "ping":
            if packet.about == self.number:
                self._send(packet.of, "ack", packet.seq, self.number, ())
        elif packet.kind == "ack":
            probe = self._probe
            relay = self._relays.pop(packet.seq, None)
            if relay is not None:
                self._send(relay[0], "ack", relay[1], packet.about, ())
            elif probe is not None and probe.seq == packet.seq:
                probe.answered = True
        elif packet.kind == "ask":
            self._seq += 1
            self._relays[self._seq] = (packet.of, packet.seq)
            self._send(packet.about, "ping", self._seq, packet.about, ())
            self._clock.after(PROBE_TIMEOUT, self._no_answer, self._seq)
        elif packet.kind == "nack" and self._probe is not None and self._probe.seq == packet.seq:
            self._probe.nacks += 1

    def _no_answer(self, seq: int) -> None:
        relay = self._relays.pop(seq, None)
        if relay is not None and self.up:
            self._send(relay[0], "nack", relay[1], self.number, ())

    def _gossip(self) -> None:
        if not self.up:
            return
        self._clock.after(GOSSIP_INTERVAL, self._gossip)
        if self._queue:
            for other in self._drawn(GOSSIP_NODES, self.number):
                if self._queue:
                    self._send(other, "gossip", 0, other, ())

    def _send(
        self,
        to: int,
        kind: Literal["ping", "ack", "ask", "nack", "gossip"],
        seq: int,
        about: int,
        first: tuple[Said, ...],
    ) -> None:
        rumours = first
        if self._queue:
            room = (PACKET - _SIZES[kind]) // SAID - len(first)
            rumours = (*first, *self._taken(room))
        self._group.carry(self.number, to, Packet(kind, self.number, seq, about, rumours))

    def _taken(self, room: int) -> list[Said]:
        limit = RETRANSMIT_MULT * math.ceil(math.log10(self._group.size + 1))
        first = sorted(self._queue.items(), key=lambda item: item[1][:2])[:room]
        for member, (transmits, number, said) in first:
            if transmits + 1 >= limit:
                del self._queue[member]
            else:
                self._queue[member] = (transmits + 1, number, said)
        return [said for _, (_, _, said) in first]

    # -------------------------------------------------------------------------------------------------------- rumours

    def _tell(self, said: Said) -> None:
        self._told += 1
        self._queue[said.member] = (0, -self._told, said)

    def _hear(self, said: Said) -> None:
        if said.member == self.number:
            self._about_me(said)
            return
        state, incarnation = self._known.get(said.member, ("alive", 0))
        if said.state == "alive":
            if said.incarnation > incarnation:
                self._set(said, "alive")
        elif said.incarnation < incarnation or state == "dead":
            return
        elif said.state == "dead":
            self._set(said, "dead")
        elif state == "suspect":
            self._confirm(said)
        else:
            self._set(said, "suspect")
            suspicion = _Suspicion(said.incarnation, self._clock.now, {said.by})
            self._suspicions[said.member] = suspicion
            self._wind(said.member, suspicion)

    def _set(self, said: Said, state: State) -> None:
        self._suspicions.pop(said.member, None)
        self._known[said.member] = (state, said.incarnation)
        if state == "dead":
            self.dead.add(said.member)
            now = self._clock.now
            if not self.changes or self.changes[-1] != now:
                self.changes.append(now)
            self._group.on_dead(said.member)
        else:
            self.dead.discard(said.member)
        self._tell(said)

    def _about_me(self, said: Said) -> None:
        if said.state != "alive" and said.incarnation >= self.incarnation:
            self.incarnation = said.incarnation + 1
            self.score = min(AWARENESS - 1, self.score + 1)
            self._tell(Said(self.number, self.incarnation, "alive", self.number))

    def _confirm(self, said: Said) -> None:
        suspicion = self._suspicions.get(said.member)
        if suspicion is None or said.by in suspicion.by or len(suspicion.by) > SUSPICION_MULT - 2:
            return
        suspicion.by.add(said.by)
        self._tell(said)
        self._wind(said.member, suspicion)

    def _wind(self, member: int, suspicion: _Suspicion) -> None:
        least = SUSPICION_MULT * max(1.0, math.log10(max(1, self._group.size))) * PROBE_INTERVAL
        most, needed = SUSPICION_MAX * least, SUSPICION_MULT - 2
        share = math.log(len(suspicion.by)) / math.log(needed + 1)
        suspicion.deadline = suspicion.since + max(least, most - (most - least) * share)
        self._clock.at(suspicion.deadline, self._time_out, member, suspicion)

    def _time_out(self, member: int, suspicion: _Suspicion) -> None:
        if self.up and self._suspicions.get(member) is suspicion and self._clock.now >= suspicion.deadline:
            self._hear(Said(member, suspicion.incarnation, "dead", self.number))


class Memberlist:
    """A group of peers.

    Attributes:
        peers: all of them.
        size: how many.
        messages: datagrams sent.
        bytes: their size.
        false_deaths: members that somebody held for dead while they were there.
    """

    def __init__(self, nodes: int, seed: int, *, loss: float = 0.0) -> None:
        chance = Chance(seed)
        self.clock = Clock()
        self.network = Network(chance.stream("network"))
        self.network.loss = loss
        self.size = nodes
        self.messages = 0
        self.bytes = 0
        self.false_deaths: set[int] = set()
        self._first: dict[int, float] = {}
        self._draw = chance.stream("faults")
        self.peers = [Peer(self, i, chance.stream(f"peer/{i}")) for i in range(nodes)]

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.run(self.clock.now + seconds)

    def carry(self, source: int, target: int, packet: Packet) -> None:
        """Send a datagram on its way."""
        self.messages += 1
        self.bytes += _SIZES[packet.kind] + SAID * len(packet.rumours) + _UDP
        for delay in self.network.datagram(source, target):
            self.clock.after(delay, self.peers[target].receive, packet)

    def dial(self, source: int, target: int) -> float | None:
        """Seconds that a ping over TCP takes to be answered, None if it is not."""
        peer = self.peers[target]
        if not peer.up or not self.network.is_open(source, target):
            return None
        took = sum(self.network.segment(*pair) for pair in ((source, target), (target, source)) for _ in range(2))
        return took + (self._draw.uniform(*peer.starved) if peer.starved is not None else 0.0)

    def on_dead(self, member: int) -> None:
        """Somebody holds a member for dead."""
        if self.peers[member].up:
            self.false_deaths.add(member)
        else:
            self._first.setdefault(member, self.clock.now)

    def draw(self, number: int) -> list[int]:
        """Draw peers that are there."""
        return sorted(self._draw.sample([p.number for p in self.peers if p.up], number))

    def crash(self, victims: Collection[int]) -> None:
        """These are gone without a word."""
        for number in victims:
            self.peers[number].up = False

    def all_know(self, victims: Collection[int]) -> bool:
        """True if everybody holds these for dead."""
        return all(peer.dead.issuperset(victims) for peer in self.peers if peer.up)

    @property
    def first(self) -> float | None:
        """When somebody held one of the dead for dead first."""
        return min(self._first.values(), default=None)

    def changes(self, since: float) -> int:
        """How often the membership changed for one observer, in the median over all."""
        counts = sorted(sum(at >= since for at in peer.changes) for peer in self.peers if peer.up)
        return counts[len(counts) // 2] if counts else 0
