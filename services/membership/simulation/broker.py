"""Twin of the broker: one log with compare-and-set and ids that are stored once, live delivery, heartbeats, notices.

What a real one does and this one keeps: what is appended is on disk before anybody hears of it; who was away reads what
it missed; a heartbeat is never stored; a process that ends has its connections closed by its kernel, a host that
vanishes is found out by the broker's own pings. What is simplified: one job; the log is never lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Literal, cast

from reknit.core.events import AnyEvent, Event, NodePulse, WorkerPulse, kind_of

from .clock import Clock
from .link import Link, Post
from .network import Network

WALL = 1_700_000_000.0
"""The broker's clock at the beginning, seconds since the epoch."""
HOST = -1
"""The broker's place in the network."""
STORED = 0.0004
"""Seconds until an append is on disk."""
SWEEP = 1.0
"""Seconds between two looks at who does not answer pings."""
UNANSWERED = 2.0
"""Seconds without an answer until a connection is closed (`ping_interval` 1 s, two outstanding)."""
RESET = 0.004
"""Seconds until the end of a process is told: its kernel closes the connection."""

Answer = Literal["stored", "stale"]


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One event of the log; `at`: when it was stored, by the broker's clock, seconds since the epoch."""

    seq: int
    event: AnyEvent
    id: str
    kind: str
    at: float


class Broker:
    """The log, and everybody who is connected.

    Attributes:
        log: all entries; the one with sequence n stands at n - 1.
        up: False during an outage.
        watchers: called with each entry as it is appended; the simulation's own eyes, not a delivery.
        pulses: heartbeats that arrived.
    """

    def __init__(self, clock: Clock, network: Network) -> None:
        self.clock = clock
        self.network = network
        self.log: list[Entry] = []
        self.up = True
        self.watchers: list[Callable[[Entry], None]] = []
        self.pulses = 0
        self._of_kind: dict[str, list[Entry]] = {}
        self._ids: set[tuple[str, str]] = set()
        self._links: dict[int, Link] = {}
        self._subscribers: dict[str, dict[int, Link]] = {}
        self._services: dict[int, Link] = {}
        self._clients = 100
        clock.after(SWEEP, self._sweep)

    @property
    def wall(self) -> float:
        """Its clock, seconds since the epoch."""
        return WALL + self.clock.now

    # --------------------------------------------------------------------------------------------------------- log

    def append(self, event: Event, id_: str, expect_last: int | None) -> Answer:
        """Store an event unless compare-and-set refuses it; one whose id is there already is stored once."""
        kind = kind_of(event)
        if (kind, id_) in self._ids:
            return "stored"  # a resend: whoever sent it first got through
        before = self._of_kind.setdefault(kind, [])
        if expect_last is not None and expect_last != (before[-1].seq if before else 0):
            return "stale"
        entry = Entry(len(self.log) + 1, cast(AnyEvent, event), id_, kind, self.wall)
        self.log.append(entry)
        self._ids.add((kind, id_))
        before.append(entry)
        for watch in self.watchers:
            watch(entry)
        if self.up:
            for link in (*self._services.values(), *self._subscribers.get(kind, {}).values()):
                link.hear(entry)
        return "stored"

    def after(self, seq: int, kinds: Collection[str] | None) -> list[Entry]:
        """Return the entries after a sequence, of these kinds or of all, in order."""
        if kinds is None:
            return self.log[seq:]
        found = [entry for kind in kinds for entry in self._of_kind.get(kind, ()) if entry.seq > seq]
        return sorted(found, key=lambda entry: entry.seq)

    # ------------------------------------------------------------------------------------------------- connections

    def admit(self, link: Link) -> int:
        """Take a connection in; returns its client id."""
        self._clients += 1
        self._links[self._clients] = link
        if link.kinds is None:
            self._services[self._clients] = link
        else:
            for kind in link.kinds:
                self._subscribers.setdefault(kind, {})[self._clients] = link
        return self._clients

    def dismiss(self, client_id: int) -> None:
        """Forget a connection."""
        link = self._links.pop(client_id, None)
        if link is None:
            return
        self._services.pop(client_id, None)
        for kind in link.kinds or ():
            self._subscribers.get(kind, {}).pop(client_id, None)

    def reset(self, link: Link) -> None:
        """The kernel of the other end closed this connection."""
        self.clock.after(RESET, self._closed, link.client_id)

    def _closed(self, client_id: int) -> None:
        link = self._links.get(client_id)
        if link is None or not self.up:
            return
        if not self.network.is_open(link.host, HOST):
            return  # the reset never arrives; the pings will tell
        self._end(client_id, link)

    def _end(self, client_id: int, link: Link) -> None:
        self.dismiss(client_id)
        for service in self._services.values():
            service.notice(client_id, link.name)
        link.lost()

    def _sweep(self) -> None:
        self.clock.after(SWEEP, self._sweep)
        if not self.up:
            return
        now = self.clock.now
        for client_id, link in list(self._links.items()):
            if link.runs() and self.network.is_open(link.host, HOST):
                link.silent_since = None
            elif link.silent_since is None:
                link.silent_since = now
            elif now - link.silent_since >= UNANSWERED:
                self._end(client_id, link)

    # ---------------------------------------------------------------------------------------------------- messages

    def receive(self, link: Link, session: int, post: Post) -> None:
        """An append arrives."""
        if not self.up or session != link.session:
            return
        link.answer(session, post, self.append(post.event, post.id, post.expect_last), STORED)

    def relay(self, pulse: WorkerPulse | NodePulse, when: float) -> None:
        """A heartbeat that arrives at `when` goes on to the services."""
        for service in self._services.values():
            service.hear_pulse(pulse, when)

    # ------------------------------------------------------------------------------------------------------- faults

    def fail(self) -> None:
        """The broker's process dies: all connections end at once, and it tells nobody of it."""
        self.up = False
        links = list(self._links.items())
        for client_id, link in links:
            self.dismiss(client_id)
            link.lost()

    def recover(self) -> None:
        """It is back on the same store."""
        self.up = True
