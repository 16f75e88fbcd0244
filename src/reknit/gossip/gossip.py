"""One node's whole protocol, without a socket, a clock or a thread.

    gossip = Gossip(Self("n0", epoch, ("10.0.0.1", 7000)), preset=TRAIN, seed=1, now=clock())
    gossip.meet([("10.0.0.2", 7000)])
    … gossip.on_packet(now, packet, source)     for each packet that arrives
    … gossip.on_timer(now)                      at `gossip.due()`, or later: lateness is noticed and is nobody's silence
    … gossip.transmit()                         after either: packets to send, each with its address
    … gossip.happened()                         after either: what the owner should know

All times are one monotonic clock of the caller's, in seconds. A packet that makes no sense is ignored: whoever has the
key may send anything.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from reknit.core.address import Address

from .health import Health
from .message import Ack, Ask, Message, Nack, Packet, Ping, Sync, envelope, size_of
from .observing import Observing
from .preset import Preset
from .probing import Probe, Turn, drawn
from .roster import Roster
from .rumour import Rumour, State, said
from .spread import Spread
from .suspicion import Suspicion, suspect
from .syncing import batches, differing
from .view import View

ROOM: Final = 1400 - 64
"""Bytes of a packet, without the seal."""
_HOUSEKEEPING: Final = 1.0
_QUIET: Final = 5.0
_SMOOTH: Final = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class Self:
    """Who this node is.

    Attributes:
        name: of the node, unique in the job.
        epoch: number of this process: a later one of this name has a greater one. Agents take the sequence of their
            `node.joined`.
        address: where it listens, as others reach it.
    """

    name: str
    epoch: int
    address: Address


@dataclasses.dataclass(frozen=True, slots=True)
class Happening:
    """Something that the owner should know.

    joined, gone: a member came, died or left · suspected, refuted · report: `silent` or `sick` changed, tell it now ·
    superseded: a later process has this node's name.
    """

    what: Literal["joined", "gone", "suspected", "refuted", "report", "superseded"]
    name: str = ""
    detail: str = ""


@dataclasses.dataclass(slots=True)
class _Relay:
    """A ping on behalf of another."""

    asker: str
    address: Address
    seq: int
    until: float


class Gossip:
    """One member of the gossip."""

    def __init__(
        self,
        me: Self,
        *,
        preset: Preset,
        seed: int,
        now: float,
        seeds: Iterable[Address] = (),
        roster: Roster | None = None,
    ) -> None:
        """Begin.

        Args:
            me: who this node is.
            preset: every figure; the same on all nodes.
            seed: of all that is drawn.
            now: monotonic seconds.
            seeds: addresses to join through.
            roster: members known from the start; none by default.
        """
        self.me = me
        self._base = preset
        self._preset = preset
        self._chance = random.Random(seed)
        self._view = View(roster)
        self._mine = Rumour(me.name, me.epoch, 0, State.ALIVE, *me.address, me.name)
        self._observing = Observing(preset)
        self._health = Health(preset.health)
        self._spread = Spread(preset.retransmit)
        self._turn = Turn(me.name, self._chance)
        self._probe: Probe | None = None
        self._doubts: dict[int, tuple[Rumour, float]] = {}  # probe -> whom it was of, until when a late answer counts
        self._relays: dict[int, _Relay] = {}
        self._suspicions: dict[str, Suspicion] = {}
        self._rtt: dict[str, float] = {}
        self._seq = 0
        self._round: tuple[int, float] = (0, now)  # number and time of the last pings of all subjects
        self._watched = -1
        self._synced = -math.inf
        self._news = now
        self._settled = roster is not None  # others' rumours are told on once we know about what they know
        self._seeds = [s for s in seeds if s != me.address]
        self._out: list[tuple[Address, Packet]] = []
        self._happened: list[Happening] = []
        self._left = False
        first = self._chance.random()
        self._next_round = now + first * preset.interval
        self._next_probe = now + self._chance.random() * preset.probe
        self._next_spread = now
        self._next_knock = now + self._chance.random() * preset.reconnect
        self._next_house = now + self._chance.random() * _HOUSEKEEPING
        self._began = now
        self._due = now
        if self._view.put(self._mine, now):
            self._spread.tell(self._mine)
        for address in self._seeds:
            self._knock(address, "")

    # ------------------------------------------------------------------------------------------------ what is known

    @property
    def silent(self) -> frozenset[str]:
        """Subjects of this node that do not answer; empty while it is sick."""
        return self._observing.silent

    @property
    def sick(self) -> bool:
        """True if most subjects do not answer: the fault is this node's own."""
        return self._observing.sick

    @property
    def subjects(self) -> tuple[str, ...]:
        """Whom this node watches."""
        return self._observing.subjects

    @property
    def digest(self) -> int:
        """64 bits of who is there, in which life: equal for equal views."""
        return self._view.digest

    @property
    def size(self) -> int:
        """How many members are there, this node among them."""
        return self._view.size

    @property
    def incarnation(self) -> int:
        """How often this process has refuted."""
        return self._mine.incarnation

    @property
    def health(self) -> int:
        """0: well, up to 7."""
        return self._health.score

    def alive(self) -> Iterator[str]:
        """Names of all who are there, suspected or not."""
        return self._view.names()

    def state(self, name: str) -> Rumour | None:
        """What holds about a member, None if nothing is known."""
        return self._view.get(name)

    def rtt(self, name: str) -> float | None:
        """Round trip to a subject in seconds, smoothed; None if not measured."""
        return self._rtt.get(name)

    def due(self) -> float:
        """When `on_timer` is to be called next."""
        return self._due

    # ------------------------------------------------------------------------------------------------ in and out

    def transmit(self) -> list[tuple[Address, Packet]]:
        """Return the packets to send, once."""
        out, self._out = self._out, []
        return out

    def happened(self) -> list[Happening]:
        """Return what has happened, once."""
        out, self._happened = self._happened, []
        return out

    def meet(self, addresses: Iterable[Address]) -> None:
        """Get to know members at these addresses: those that nobody known listens at are knocked at."""
        for address in addresses:
            if address == self.me.address or address in self._seeds:
                continue
            self._seeds.append(address)
            if self._view.named_at(address) is None:
                self._knock(address, "")

    def leave(self, now: float) -> None:
        """Say goodbye; send what `transmit` gives, then be quiet."""
        self._mine = said(self._mine, State.LEFT, self.me.name)
        self._view.put(self._mine, now)
        self._left = True
        for name in drawn(self._view, self._chance, 4 * self._preset.fanout, frozenset((self.me.name,))):
            self._send(name, (), self._mine)

    def on_packet(self, now: float, packet: Packet, source: Address) -> None:
        """Take one packet in.

        Args:
            now: monotonic seconds.
            packet: as opened by the codec.
            source: address it came from.
        """
        me = self.me.name
        if self._left or packet.of == me or packet.to not in (me, ""):
            return
        held = self._view.get(packet.of)
        if held is not None and packet.epoch < held.epoch:
            self._post(source, packet.of, (), held)  # a later process has its name: let it know
            return
        for rumour in packet.rumours:
            self._hear(rumour, now)
        for part in packet.parts:
            if isinstance(part, Ping):
                self._answer(packet.of, source, Ack(part.seq, self._view.digest if part.view else 0))
                if part.view:
                    self._compare(packet.of, part.view, now)
            elif isinstance(part, Ack):
                self._acknowledged(packet.of, part, now)
            elif isinstance(part, Ask):
                self._ask(packet.of, source, part, now)
            elif isinstance(part, Nack):
                if self._probe is not None and self._probe.seq == part.seq:
                    self._probe.nacks += 1
            else:
                self._sync(packet.of, source, part)

    def on_timer(self, now: float) -> None:
        """Do what is due; also to be called at once after `on_packet` if `due()` has come nearer."""
        if self._left:
            self._due = math.inf
            return
        lag = now - self._due
        if lag > self._preset.interval:
            self._put_off(lag)
        if self._watched != self._view.version:
            self._rewatch(now)
        if now >= self._next_round:
            self._ping_subjects(now)
        self._step_probe(now)
        self._time_out(now)
        self._keep_house(now)
        self._spread_on(now)
        if self._observing.look(now):
            self._happened.append(Happening("report"))
        self._due = self._next(now)

    def _time_out(self, now: float) -> None:
        for seq in [seq for seq, relay in self._relays.items() if now >= relay.until]:
            relay = self._relays.pop(seq)
            self._answer(relay.asker, relay.address, Nack(relay.seq))
        for seq in [seq for seq, (_, until) in self._doubts.items() if now >= until]:
            of, _ = self._doubts.pop(seq)
            held = self._view.get(of.name)
            if held is not None and held.state <= State.SUSPECT and held.epoch == of.epoch:
                self._hear(said(held, State.SUSPECT, self.me.name), now)
        for name in [name for name, suspicion in self._suspicions.items() if now >= suspicion.deadline]:
            if (held := self._view.get(name)) is not None:
                self._hear(said(held, State.DEAD, self.me.name), now)

    def _keep_house(self, now: float) -> None:
        if now >= self._next_knock:
            self._next_knock = now + self._preset.reconnect
            self._reconnect()
        if now >= self._next_house:
            self._next_house = now + _HOUSEKEEPING
            self._view.forget(now - self._preset.tombstone)
            self._view.settle(now, _QUIET)
            if now - self._began > 2 * _QUIET:
                self._settled = True

    def _spread_on(self, now: float) -> None:
        if len(self._spread) and now >= self._next_spread:
            self._next_spread = now + self._preset.spread_every
            for name in drawn(self._view, self._chance, self._preset.fanout, frozenset((self.me.name,))):
                self._send(name, ())

    # ------------------------------------------------------------------------------------------------ rings

    def _rewatch(self, now: float) -> None:
        self._watched = self._view.version
        self._preset = self._base.for_size(self._view.size)
        self._observing.watch(self._view.successors(self.me.name, self._preset.rings), now)
        subjects = set(self._observing.subjects)
        self._rtt = {name: rtt for name, rtt in self._rtt.items() if name in subjects}

    def _ping_subjects(self, now: float) -> None:
        self._next_round = max(self._next_round + self._preset.interval, now)
        self._seq += 1
        self._round = self._seq, now
        ping = (Ping(self._seq),)
        for name in self._observing.subjects:
            self._send(name, ping)

    def _acknowledged(self, name: str, ack: Ack, now: float) -> None:
        self._observing.heard(name, now)
        seq, at = self._round
        if ack.seq == seq:
            before = self._rtt.get(name)
            if before is not None or name in self._observing.subjects:
                took = now - at
                self._rtt[name] = took if before is None else before + _SMOOTH * (took - before)
        self._doubts.pop(ack.seq, None)
        probe = self._probe
        if probe is not None and ack.seq == probe.seq and not probe.answered:
            probe.answered = True
            self._health.better()
            if ack.view and name == probe.of.name:
                self._compare(name, ack.view, now)
        relay = self._relays.pop(ack.seq, None)
        if relay is not None:
            self._answer(relay.asker, relay.address, Ack(relay.seq))

    # ------------------------------------------------------------------------------------------------ SWIM

    def _step_probe(self, now: float) -> None:
        probe = self._probe
        if probe is not None:
            if probe.answered:
                self._probe = None
            elif now >= probe.ends_at:
                self._probe = None
                missing = probe.helpers - probe.nacks
                self._health.worse(missing if probe.helpers else 1)
                self._doubts[probe.seq] = (probe.of, now + self._preset.patience)
            elif now >= probe.asked_at and not probe.helpers:
                self._ask_others(probe)
        if self._probe is None and now >= self._next_probe:
            self._next_probe = max(self._next_probe + self._preset.probe, now)
            name = self._turn.next(self._view)
            held = self._view.get(name) if name is not None else None
            if held is not None:
                self._seq += 1
                ends = now + self._health.stretched(self._preset.probe)
                self._probe = Probe(held, self._seq, now + self._preset.timeout, ends)
                self._send(held.name, (Ping(self._seq, self._view.digest),))
                self._next_probe = max(self._next_probe, now + self._preset.probe)

    def _ask_others(self, probe: Probe) -> None:
        ask = Ask(probe.seq, probe.of.name, probe.of.host, probe.of.port)
        helpers = drawn(self._view, self._chance, self._preset.helpers, frozenset((self.me.name, probe.of.name)))
        probe.helpers = len(helpers)
        probe.asked_at = math.inf
        for name in helpers:
            self._send(name, (ask,))

    def _ask(self, asker: str, source: Address, ask: Ask, now: float) -> None:
        self._seq += 1
        self._relays[self._seq] = _Relay(asker, source, ask.seq, now + self._preset.timeout)
        self._due = min(self._due, now + self._preset.timeout)
        self._post((ask.host, ask.port), ask.name, (Ping(self._seq),), self._known_bad(ask.name))

    # ------------------------------------------------------------------------------------------------ rumours

    def _hear(self, rumour: Rumour, now: float) -> None:
        if rumour.name == self.me.name:
            self._about_me(rumour, now)
            return
        before = self._view.get(rumour.name)
        if before is not None and rumour.state == State.SUSPECT and rumour.rank == before.rank:
            suspicion = self._suspicions.get(rumour.name)
            if suspicion is not None and suspicion.confirmed(rumour.by):
                self._tell(rumour, now)
                self._due = min(self._due, suspicion.deadline)
            return
        if rumour.present and (ghost := self._view.named_at(rumour.address)) not in (None, rumour.name, self.me.name):
            self._retire(str(ghost), rumour, now)
        if not self._view.put(rumour, now):
            return
        self._suspicions.pop(rumour.name, None)
        if rumour.state == State.SUSPECT:
            suspicion = suspect(self._preset, self._view.size, rumour.by, now)
            self._suspicions[rumour.name] = suspicion
            self._due = min(self._due, suspicion.deadline)
        self._say(before, rumour)
        self._tell(rumour, now)

    def _retire(self, ghost: str, by: Rumour, now: float) -> None:
        """Another process listens where a member was: that one is gone, if it is older."""
        held = self._view.get(ghost)
        if held is not None and held.epoch < by.epoch:
            self._hear(said(held, State.DEAD, self.me.name), now)

    def _about_me(self, rumour: Rumour, now: float) -> None:
        mine = self._mine
        if rumour.epoch > mine.epoch and rumour.address == mine.address:
            # Nobody else can listen at our address, so that process is our predecessor: the numbers began anew.
            self.me = dataclasses.replace(self.me, epoch=rumour.epoch + 1)
            self._mine = msgspec.structs.replace(mine, epoch=self.me.epoch, incarnation=0)
            self._view.put(self._mine, now)
            self._tell(self._mine, now)
        elif rumour.epoch > mine.epoch:
            self._happened.append(Happening("superseded", rumour.name, f"{rumour.host}:{rumour.port}"))
        elif rumour.epoch < mine.epoch:
            self._tell(mine, now)
        elif rumour.rank > mine.rank:
            self._health.worse()
            self._mine = msgspec.structs.replace(mine, incarnation=rumour.incarnation + 1)
            self._view.put(self._mine, now)
            self._tell(self._mine, now)

    def _say(self, before: Rumour | None, rumour: Rumour) -> None:
        was = before is not None and before.present
        if rumour.present and not was:
            self._happened.append(Happening("joined", rumour.name))
        elif was and not rumour.present:
            why = "left" if rumour.state == State.LEFT else f"dead, says {rumour.by}"
            self._happened.append(Happening("gone", rumour.name, why))
        elif rumour.state == State.SUSPECT:
            self._happened.append(Happening("suspected", rumour.name, rumour.by))
        elif before is not None and before.state == State.SUSPECT:
            self._happened.append(Happening("refuted", rumour.name))

    def _tell(self, rumour: Rumour, now: float) -> None:
        self._news = now
        if self._settled or rumour.name == self.me.name:
            if not len(self._spread):
                self._next_spread = max(self._next_spread, now)
            self._spread.tell(rumour)
            self._due = min(self._due, self._next_spread)

    # ------------------------------------------------------------------------------------------------ anti-entropy

    def _compare(self, name: str, view: int, now: float) -> None:
        """Two views: if they differ and no news is on its way that explains it, exchange what differs."""
        if view == self._view.digest:
            self._settled = True
        elif now - self._synced >= self._preset.sync and (not self._settled or now - self._news >= self._preset.sync):
            self._synced = now
            self._send(name, (Sync(self._view.sums()),), self._mine)

    def _sync(self, name: str, source: Address, sync: Sync) -> None:
        mine = self._view.sums()
        differ = differing(mine, sync.sums)
        if not sync.answer:
            self._answer(name, source, Sync(mine, answer=True))
        for batch in batches(
            self._view.parts(differ) if differ else (), ROOM - envelope(self.me.name, name), self._chance
        ):
            self._out.append((source, Packet(self.me.name, self.me.epoch, name, (), batch)))

    def _reconnect(self) -> None:
        """Knock at one who is held for dead, or at a seed where nobody known listens: halves find each other again."""
        doors: list[Rumour | Address] = [*self._view.lost()]
        doors += [s for s in self._seeds if self._view.named_at(s) is None]
        if not doors:
            return
        door = self._chance.choice(doors)
        if isinstance(door, Rumour):
            self._send(door.name, (Ping(0, self._view.digest),), door)
        else:
            self._knock(door, "")

    def _knock(self, address: Address, name: str) -> None:
        self._post(address, name, (Sync(self._view.sums()),), self._mine)

    # ------------------------------------------------------------------------------------------------ sending

    def _known_bad(self, name: str) -> Rumour | None:
        """What is held against a member, so that it hears of it and can refute."""
        held = self._view.get(name)
        return held if held is not None and held.state != State.ALIVE else None

    def _answer(self, name: str, source: Address, part: Message) -> None:
        held = self._view.get(name)
        bad = held if held is not None and held.state else None
        self._post(source, name, (part,), bad)

    def _send(self, name: str, parts: tuple[Message, ...], first: Rumour | None = None) -> None:
        held = self._view.get(name)
        if held is not None:
            if first is None and held.state:
                first = held
            self._post((held.host, held.port), name, parts, first)

    def _post(self, address: Address, name: str, parts: tuple[Message, ...], first: Rumour | None) -> None:
        rumours: tuple[Rumour, ...] = ()
        if first is not None or len(self._spread):
            room = ROOM - envelope(self.me.name, name) - sum(map(size_of, parts))
            rumours = self._spread.take(room, self._view.size, first)
        self._out.append((address, Packet(self.me.name, self.me.epoch, name, parts, rumours)))

    # ------------------------------------------------------------------------------------------------ time

    def _put_off(self, seconds: float) -> None:
        """This process did not run for so long: others had no chance to be heard."""
        self._observing.put_off(seconds)
        for suspicion in self._suspicions.values():
            suspicion.put_off(seconds)
        self._doubts = {seq: (of, until + seconds) for seq, (of, until) in self._doubts.items()}
        if self._probe is not None:
            self._probe.asked_at += seconds
            self._probe.ends_at += seconds

    def _next(self, now: float) -> float:
        times = [self._next_round, self._next_knock, self._next_house, self._observing.next_look(now)]
        probe = self._probe
        if probe is None or probe.answered:
            times.append(self._next_probe)
        else:
            times += (probe.ends_at, probe.asked_at)
        if len(self._spread):
            times.append(self._next_spread)
        times += [relay.until for relay in self._relays.values()]
        times += [until for _, until in self._doubts.values()]
        times += [suspicion.deadline for suspicion in self._suspicions.values()]
        return min(times)
