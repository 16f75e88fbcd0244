"""A process's connection to the broker: an outbox that survives reconnects, deliveries in order, heartbeats.

Owner: `Link(…, on_entry=…, kinds=…)`, then `open()`; `post(event, id)` is stored once, now or after the broker is back;
`pulse(…)` is gone if there is no connection. `runs` says whether the process executes; what arrives for one that is
stopped waits in its socket until `resume()`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from reknit.core.events import Event, NodePulse, WorkerPulse

from .network import NEAR, RETRANSMIT

if TYPE_CHECKING:
    from .broker import Answer, Broker, Entry

_AGAIN = (0.1, 0.5)
"""Seconds between two tries to connect."""
_STALLED = 0.2
"""Seconds after which a stalled stream looks whether its path is whole; doubled up to the last."""
_STALLED_MOST = 1.6


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Post:
    """An append that is not acknowledged yet."""

    event: Event
    id: str
    expect_last: int | None = None
    done: Callable[[Answer], None] | None = None


class Link:
    """One connection, through all its sessions.

    Attributes:
        host: where the process is.
        name: what the connection is called.
        kinds: kinds of events that are delivered; None: all, and heartbeats and notices too.
        client_id: of the present session, 0 while there is none.
        session: counts sessions; what belongs to an earlier one is void.
        seen: newest sequence that was handed to the owner, or passed over as not of its kinds.
        silent_since: since when the broker gets no answer to its pings.
    """

    def __init__(
        self,
        broker: Broker,
        chance: random.Random,
        *,
        host: int,
        name: str,
        runs: Callable[[], bool],
        kinds: Collection[str] | None = (),
        on_entry: Callable[[Entry], None] | None = None,
        on_pulse: Callable[[WorkerPulse | NodePulse], None] | None = None,
        on_notice: Callable[[int, str], None] | None = None,
    ) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._network = broker.network
        self._random = chance
        self.host = host
        self.name = name
        self.runs = runs
        self.kinds = kinds
        self._on_entry = on_entry
        self._on_pulse = on_pulse
        self._on_notice = on_notice
        self.client_id = 0
        self.session = 0
        self.seen = 0
        self.silent_since: float | None = None
        self._ended = False
        self._vanished = False
        self._there_at = -1.0  # when it was opened as if it had always been there
        self._sent = 0  # newest sequence on its way to us
        self._in_at = 0.0
        self._out_at = 0.0
        self._outbox: list[Post] = []
        self._inbox: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._held: list[Post | WorkerPulse | NodePulse] = []
        self._behind = False
        self._stall = 0.0
        self._waiting = 0  # session in which the path is looked at

    # ------------------------------------------------------------------------------------------------ its beginning

    def open(self, *, at_once: bool = False) -> None:
        """Connect, now or as soon as that is possible; `at_once`: as if it had been connected before the beginning."""
        if self._ended or self.client_id:
            return
        broker, network = self._broker, self._network
        if at_once:
            self._there_at = self._clock.now
            self._opened()
            return
        if self.runs() and broker.up and network.is_open(self.host, _HOST):
            delay = network.segment(self.host, _HOST) + network.segment(_HOST, self.host)
            self._clock.after(delay, self._opened)
        else:
            self._clock.after(_AGAIN[0] + (_AGAIN[1] - _AGAIN[0]) * self._random.random(), self.open)

    def _opened(self) -> None:
        if self._ended or self.client_id:
            return
        if not self.runs() or not self._broker.up or not self._network.is_open(self.host, _HOST):
            self.open()
            return
        self.session += 1
        self.client_id = self._broker.admit(self)
        self.silent_since = None
        self._sent = self.seen
        self._held.clear()
        self._behind, self._stall, self._waiting = False, 0.0, 0
        self._catch_up()
        for post in list(self._outbox):
            self._send(post)

    def lost(self) -> None:
        """The connection ended; another is made."""
        self.client_id = 0
        self.session += 1
        if not self._ended:
            self._clock.after(_AGAIN[0] * (1 + self._random.random()), self.open)

    def end(self, *, reset: bool) -> None:
        """The process is gone; `reset`: its kernel says so, else (the host is gone) nobody does."""
        self._ended, self._vanished = True, not reset
        self._outbox.clear()
        self._inbox.clear()
        if reset and self.client_id:
            self._broker.reset(self)

    def resume(self) -> None:
        """The process runs again and finds what has arrived since."""
        inbox, self._inbox = self._inbox, []
        for call, args in inbox:
            self._deliver(call, *args)

    # ------------------------------------------------------------------------------------------------------ outwards

    def post(
        self,
        event: Event,
        id_: str,
        *,
        expect_last: int | None = None,
        done: Callable[[Answer], None] | None = None,
    ) -> Post:
        """Append an event, in order with the others; sent again with its id until it is acknowledged."""
        post = Post(event, id_, expect_last, done)
        if self._clock.now == self._there_at:
            self._broker.append(event, id_, expect_last)  # it was said before the beginning
            return post
        self._outbox.append(post)
        if self.client_id:
            self._send(post)
        return post

    def withdraw(self, post: Post) -> bool:
        """Give up an append; False if it was acknowledged already. It may have got through all the same."""
        if post not in self._outbox:
            return False
        self._outbox.remove(post)
        return True

    def pulse(self, pulse: WorkerPulse | NodePulse) -> None:
        """Send a heartbeat, if there is a connection."""
        if not self.client_id:
            return
        if self._held or not self._network.is_open(self.host, _HOST):
            self._hold(pulse)
            return
        self._beat(pulse)

    def _beat(self, pulse: WorkerPulse | NodePulse) -> None:
        self._out_at = when = max(self._out_at, self._clock.now + self._network.segment(self.host, _HOST))
        if when - self._clock.now < RETRANSMIT:
            self._broker.relay(pulse, when)
        else:
            self._clock.at(when, self._beat_again, pulse)

    def _beat_again(self, pulse: WorkerPulse | NodePulse) -> None:
        """A heartbeat that was lost arrives, if its host was still there to send it again."""
        if not self._vanished:
            self._broker.relay(pulse, self._clock.now)

    def _send(self, post: Post) -> None:
        if self._held or not self._network.is_open(self.host, _HOST):
            self._hold(post)
            return
        self._out_at = max(self._out_at, self._clock.now + self._network.segment(self.host, _HOST))
        self._clock.at(self._out_at, self._broker.receive, self, self.session, post)

    def answer(self, session: int, post: Post, answer: Answer, stored: float) -> None:
        """The broker acknowledges an append, once it is on disk `stored` seconds from now."""
        self._in_at = max(self._in_at, self._clock.now + stored + self._network.segment(_HOST, self.host))
        self._clock.at(self._in_at, self._answered, session, post, answer)

    def _answered(self, session: int, post: Post, answer: Answer) -> None:
        if session == self.session and post in self._outbox:
            self._outbox.remove(post)
            if post.done is not None:
                self._deliver(post.done, answer)

    # ------------------------------------------------------------------------------------------------------- inwards

    def hear(self, entry: Entry) -> None:
        """The broker has a new entry for us."""
        if self._behind or not self._network.is_open(self.host, _HOST):
            self._behind = True
            self._wait()
            return
        self._sent = entry.seq
        self._in_at = max(self._in_at, self._clock.now + self._network.segment(_HOST, self.host))
        self._clock.at(self._in_at, self._arrive, self.session, entry)

    def _arrive(self, session: int, entry: Entry) -> None:
        if session == self.session:
            self._deliver(self._take, entry)

    def _take(self, entry: Entry) -> None:
        if entry.seq > self.seen and self._on_entry is not None:
            self.seen = entry.seq
            self._on_entry(entry)

    def _catch_up(self) -> None:
        """Have everything that was missed sent, in order."""
        for entry in self._broker.after(self._sent, self.kinds):
            self.hear(entry)

    def hear_pulse(self, pulse: WorkerPulse | NodePulse, when: float) -> None:
        """A heartbeat that is at the broker at `when` comes on to us."""
        if self._on_pulse is None or not self._network.is_open(_HOST, self.host):
            return
        # Always as long: those of one sender stay in order.
        self._clock.at(when + NEAR[1], self._pulsed, self.session, pulse)

    def _pulsed(self, session: int, pulse: WorkerPulse | NodePulse) -> None:
        if session == self.session and self._broker.up and self._on_pulse is not None:
            self._broker.pulses += 1
            self._deliver(self._on_pulse, pulse)

    def notice(self, client_id: int, name: str) -> None:
        """The broker tells that a connection ended."""
        if self._on_notice is not None and self._network.is_open(_HOST, self.host):
            delay = self._network.segment(_HOST, self.host)
            self._clock.after(delay, self._noticed, self.session, client_id, name)

    def _noticed(self, session: int, client_id: int, name: str) -> None:
        if session == self.session and self._on_notice is not None:
            self._deliver(self._on_notice, client_id, name)

    def _deliver(self, call: Callable[..., object], *args: Any) -> None:
        if self._ended:
            return
        if self.runs() and not self._inbox:
            call(*args)
        else:
            self._inbox.append((call, args))

    # ------------------------------------------------------------------------------------------------- stalled paths

    def _hold(self, what: Post | WorkerPulse | NodePulse) -> None:
        self._held.append(what)
        self._wait()

    def _wait(self) -> None:
        if self._waiting != self.session:
            self._waiting = self.session
            self._stall = min(max(_STALLED, 2 * self._stall), _STALLED_MOST)
            self._clock.after(self._stall, self._look, self.session)

    def _look(self, session: int) -> None:
        if session != self.session or not self.client_id:
            return
        self._waiting = 0
        if not self._network.is_open(self.host, _HOST):
            self._wait()
            return
        held, self._held = self._held, []
        for what in held:
            if isinstance(what, Post):
                self._send(what)
            else:
                self._beat(what)
        self._stall = 0.0
        if self._behind:
            self._behind = False
            self._catch_up()


_HOST = -1
