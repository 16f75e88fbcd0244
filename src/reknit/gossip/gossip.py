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
import itertools
import math
import random
from collections.abc import Iterable, Iterator
from typing import Final

from reknit.core.address import Address

from .happening import Happening
from .health import Health
from .hearsay import Hearsay
from .identity import Self
from .message import Ack, Ask, Nack, Packet, Ping
from .observing import Observing
from .outgoing import Outgoing
from .preset import Preset
from .probing import Probing, drawn
from .roster import Roster
from .rumour import Rumour
from .spread import Spread
from .syncing import Syncing
from .view import View

_HOUSEKEEPING: Final = 1.0
_QUIET: Final = 5.0
_SMOOTH: Final = 0.2


@dataclasses.dataclass(slots=True)
class _Relay:
    """A ping on behalf of another."""

    asker: str
    address: Address
    seq: int
    until: float


class Gossip:
    """One member of the gossip.

    Attributes:
        rounds: how often it has pinged all whom it watches.
    """

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
        self.rounds = 0
        self._base = preset
        self._preset = preset
        self._chance = random.Random(seed)
        self._view = View(roster)
        self._observing = Observing(preset)
        self._health = Health(preset.health)
        self._relays: dict[int, _Relay] = {}
        self._rtt: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._round: tuple[int, float] = (0, now)  # number and time of the last pings of all subjects
        self._watched = -1
        self._happened: list[Happening] = []
        self._left = False
        self._next_round = now + self._chance.random() * preset.interval
        first_probe = now + self._chance.random() * preset.probe
        self._next_knock = now + self._chance.random() * preset.reconnect
        self._next_house = now + self._chance.random() * _HOUSEKEEPING
        self._began = now
        self._due = now
        spread = Spread(preset.retransmit)
        self._outgoing = Outgoing(me, self._view, spread)
        self._hearsay = Hearsay(
            self._view,
            spread,
            self._outgoing,
            preset=preset,
            chance=self._chance,
            now=now,
            settled=roster is not None,
            happened=self._note,
            sooner=self._sooner,
            worse=self._health.worse,
        )
        self._probing = Probing(
            self._view,
            self._outgoing,
            self._health,
            preset=preset,
            chance=self._chance,
            numbers=self._numbers,
            first=first_probe,
        )
        self._syncing = Syncing(
            self._view, self._outgoing, self._hearsay, preset=preset, chance=self._chance, seeds=seeds
        )

    # ------------------------------------------------------------------------------------------------ what is known

    @property
    def me(self) -> Self:
        """Who this node is."""
        return self._outgoing.me

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
        return self._hearsay.mine.incarnation

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
        return self._outgoing.take()

    def happened(self) -> list[Happening]:
        """Return what has happened, once."""
        out, self._happened = self._happened, []
        return out

    def meet(self, addresses: Iterable[Address]) -> None:
        """Get to know members at these addresses: those that nobody known listens at are knocked at."""
        self._syncing.meet(addresses)

    def leave(self, now: float) -> None:
        """Say goodbye; send what `transmit` gives, then be quiet."""
        self._hearsay.leave(now)
        self._left = True
        for name in drawn(self._view, self._chance, 4 * self._preset.fanout, frozenset((self.me.name,))):
            self._outgoing.send(name, (), self._hearsay.mine)

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
            self._outgoing.post(source, packet.of, (), held)  # a later process has its name: let it know
            return
        for rumour in packet.rumours:
            self._hearsay.hear(rumour, now)
        for part in packet.parts:
            if isinstance(part, Ping):
                self._outgoing.answer(packet.of, source, Ack(part.seq, self._view.digest if part.view else 0))
                if part.view:
                    self._syncing.compare(packet.of, part.view, now)
            elif isinstance(part, Ack):
                self._acknowledged(packet.of, part, now)
            elif isinstance(part, Ask):
                self._ask(packet.of, source, part, now)
            elif isinstance(part, Nack):
                self._probing.nack(part.seq)
            else:
                self._syncing.answer(packet.of, source, part)

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
        self._probing.step(now)
        self._time_out(now)
        self._keep_house(now)
        self._hearsay.spread_on(now)
        if self._observing.look(now):
            self._happened.append(Happening("report"))
        self._due = self._next(now)

    def _time_out(self, now: float) -> None:
        for seq in [seq for seq, relay in self._relays.items() if now >= relay.until]:
            relay = self._relays.pop(seq)
            self._outgoing.answer(relay.asker, relay.address, Nack(relay.seq))
        for of in self._probing.unanswered(now):
            self._hearsay.doubt(of, now)
        self._hearsay.time_out(now)

    def _keep_house(self, now: float) -> None:
        if now >= self._next_knock:
            self._next_knock = now + self._preset.reconnect
            self._syncing.reconnect()
        if now >= self._next_house:
            self._next_house = now + _HOUSEKEEPING
            self._view.forget(now - self._preset.tombstone)
            self._view.settle(now, _QUIET)
            if now - self._began > 2 * _QUIET:
                self._hearsay.settled = True

    # ------------------------------------------------------------------------------------------------ rings

    def _rewatch(self, now: float) -> None:
        self._watched = self._view.version
        self._preset = self._base.for_size(self._view.size)
        self._observing.watch(self._view.successors(self.me.name, self._preset.rings), now)
        subjects = set(self._observing.subjects)
        self._rtt = {name: rtt for name, rtt in self._rtt.items() if name in subjects}

    def _ping_subjects(self, now: float) -> None:
        self._next_round = max(self._next_round + self._preset.interval, now)
        seq = next(self._numbers)
        self._round = seq, now
        self.rounds += 1
        ping = (Ping(seq),)
        for name in self._observing.subjects:
            self._outgoing.send(name, ping)

    def _acknowledged(self, name: str, ack: Ack, now: float) -> None:
        self._observing.heard(name, now)
        seq, at = self._round
        if ack.seq == seq:
            before = self._rtt.get(name)
            if before is not None or name in self._observing.subjects:
                took = now - at
                self._rtt[name] = took if before is None else before + _SMOOTH * (took - before)
        probe = self._probing.acknowledged(ack)
        if probe is not None and ack.view and name == probe.of.name:
            self._syncing.compare(name, ack.view, now)
        relay = self._relays.pop(ack.seq, None)
        if relay is not None:
            self._outgoing.answer(relay.asker, relay.address, Ack(relay.seq))

    def _ask(self, asker: str, source: Address, ask: Ask, now: float) -> None:
        """Ping a member on behalf of another."""
        seq = next(self._numbers)
        self._relays[seq] = _Relay(asker, source, ask.seq, now + self._preset.timeout)
        self._sooner(now + self._preset.timeout)
        self._outgoing.post((ask.host, ask.port), ask.name, (Ping(seq),), self._outgoing.known_bad(ask.name))

    def _note(self, happening: Happening) -> None:
        self._happened.append(happening)

    # ------------------------------------------------------------------------------------------------ time

    def _put_off(self, seconds: float) -> None:
        """This process did not run for so long: others had no chance to be heard."""
        self._observing.put_off(seconds)
        self._hearsay.put_off(seconds)
        self._probing.put_off(seconds)

    def _sooner(self, at: float) -> None:
        self._due = min(self._due, at)

    def _next(self, now: float) -> float:
        times = [self._next_round, self._next_knock, self._next_house, self._observing.next_look(now)]
        times += self._probing.due()
        times += self._hearsay.due()
        times += [relay.until for relay in self._relays.values()]
        return min(times)
