"""SWIM's turn: one member after the other is pinged; who does not answer is asked for through others.

In each round everybody is probed once, in an order of the node's own: steps of a stride that has no common divisor with
the number of members, which is a permutation that needs no memory. So the worst case is bounded by two rounds.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator

from .health import Health
from .message import Ack, Ask, Ping
from .outgoing import Outgoing
from .preset import Preset
from .rumour import Rumour
from .view import View


@dataclasses.dataclass(slots=True)
class Probe:
    """A probe under way.

    Attributes:
        of: what held of the member when it began.
        seq: number of its pings.
        asked_at: when others are asked.
        ends_at: when it is suspected.
        helpers: how many were asked.
        nacks: how many of them said that they got no answer.
        answered: an acknowledgement came.
    """

    of: Rumour
    seq: int
    asked_at: float
    ends_at: float
    helpers: int = 0
    nacks: int = 0
    answered: bool = False


class Turn:
    """Whose turn it is."""

    def __init__(self, me: str, chance: random.Random) -> None:
        self._me = me
        self._chance = chance
        self._size = 0
        self._left = 0
        self._at = 0
        self._stride = 1

    def next(self, view: View) -> str | None:
        """Return the next member to probe, None if there is no other."""
        for _ in range(view.count() + self._left + 1):
            if self._left == 0 or self._size > view.count():
                self._begin(view.count())
            if self._size == 0:
                return None
            self._left -= 1
            self._at = (self._at + self._stride) % self._size
            name = view.at(self._at)
            if name != self._me and view.present(name):
                return name
        return None

    def _begin(self, size: int) -> None:
        self._size = self._left = size
        if size == 0:
            return
        self._at = self._chance.randrange(size)
        self._stride = self._chance.randrange(1, size) if size > 1 else 1
        while math.gcd(self._stride, size) != 1:
            self._stride = self._stride % size + 1


def drawn(view: View, chance: random.Random, number: int, but: frozenset[str]) -> list[str]:
    """Draw up to so many different members that are there, without some."""
    size = view.count()
    found: dict[str, None] = {}
    if size <= 2 * number + len(but):
        there = [n for n in view.names() if n not in but]
        return chance.sample(there, min(number, len(there)))
    for _ in range(8 * number):
        name = view.at(chance.randrange(size))
        if name not in but and view.present(name):
            found[name] = None
            if len(found) == number:
                break
    return list(found)


class Probing:
    """The probes of one node.

    Args:
        view: whom to probe.
        outgoing: where packets go.
        health: stretches the time to answer, and learns from the answers.
        preset: figures of the protocol.
        chance: for drawing.
        numbers: of pings.
        first: when to begin, monotonic seconds.
    """

    def __init__(
        self,
        view: View,
        outgoing: Outgoing,
        health: Health,
        *,
        preset: Preset,
        chance: random.Random,
        numbers: Iterator[int],
        first: float,
    ) -> None:
        self._me = outgoing.me.name
        self._view = view
        self._outgoing = outgoing
        self._health = health
        self._preset = preset
        self._chance = chance
        self._numbers = numbers
        self._turn = Turn(self._me, chance)
        self._probe: Probe | None = None
        self._doubts: dict[int, tuple[Rumour, float]] = {}  # probe -> whom it was of, until when a late answer counts
        self._next = first

    def step(self, now: float) -> None:
        """Go on with the probe under way, and begin the next one if it is time."""
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
        if self._probe is None and now >= self._next:
            self._next = max(self._next + self._preset.probe, now)
            name = self._turn.next(self._view)
            held = self._view.get(name) if name is not None else None
            if held is not None:
                seq = next(self._numbers)
                ends = now + self._health.stretched(self._preset.probe)
                self._probe = Probe(held, seq, now + self._preset.timeout, ends)
                self._outgoing.send(held.name, (Ping(seq, self._view.digest),))
                self._next = max(self._next, now + self._preset.probe)

    def acknowledged(self, ack: Ack) -> Probe | None:
        """An acknowledgement came, of whatever ping: return the probe that it is the first answer to."""
        self._doubts.pop(ack.seq, None)
        probe = self._probe
        if probe is None or ack.seq != probe.seq or probe.answered:
            return None
        probe.answered = True
        self._health.better()
        return probe

    def nack(self, seq: int) -> None:
        """One that was asked for help got no answer either."""
        if self._probe is not None and self._probe.seq == seq:
            self._probe.nacks += 1

    def unanswered(self, now: float) -> Iterator[Rumour]:
        """Yield, once, whom no late answer came of in time."""
        for seq in [seq for seq, (_, until) in self._doubts.items() if now >= until]:
            of, _ = self._doubts.pop(seq)
            yield of

    def put_off(self, seconds: float) -> None:
        """This process did not run for so long: others had no chance to be heard."""
        self._doubts = {seq: (of, until + seconds) for seq, (of, until) in self._doubts.items()}
        if self._probe is not None:
            self._probe.asked_at += seconds
            self._probe.ends_at += seconds

    def due(self) -> list[float]:
        """When there will be something to do."""
        probe = self._probe
        times = [self._next] if probe is None or probe.answered else [probe.ends_at, probe.asked_at]
        times += [until for _, until in self._doubts.values()]
        return times

    def _ask_others(self, probe: Probe) -> None:
        ask = Ask(probe.seq, probe.of.name, probe.of.host, probe.of.port)
        helpers = drawn(self._view, self._chance, self._preset.helpers, frozenset((self._me, probe.of.name)))
        probe.helpers = len(helpers)
        probe.asked_at = math.inf
        for name in helpers:
            self._outgoing.send(name, (ask,))
