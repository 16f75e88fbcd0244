"""Twin of a membership service: the real reducer, run over the log as `core.service.Runner` runs it.

What the runner does and this one does too: read the log first, with nothing asked for; then ticks ten times a second
and one early if the reducer asks; publications one after the other, each given up after a while; one dial at a time for
each question. What is simplified: a decision takes no time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from reknit.core.decision import Decision, Disconnected, Out, Tick, Told
from reknit.core.events import NodePulse, WorkerPulse, WorkerUnreachable, kind_of
from reknit.services.membership.decide import Dial, decide
from reknit.services.membership.view import View

from .broker import Answer, Broker, Entry
from .link import Link, Post

JOB = "job"
TICK = 0.1
PUBLISH_DEADLINE = 5.0
DIALS = (0.0, 0.004, 0.006, 0.009, 0.014, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15)
"""Seconds before each try to reach an address, as the service's process has it."""
DIAL_TIMEOUT = 0.5

Reach: TypeAlias = Literal["open", "refused", "silent"]
Reducer: TypeAlias = Callable[[View, Told], Decision[View]]


class Hub:
    """One membership service.

    Attributes:
        name: its name as a proposer; a restarted one has another.
        view: what it knows.
        running: it executes (neither killed nor stopped).
        worlds: generations that it has heard, in order.
        stale: publications that compare-and-set refused.
    """

    def __init__(
        self,
        broker: Broker,
        chance: random.Random,
        *,
        number: int,
        reach: Callable[[str, float], Reach],
        reducer: Reducer = decide,
    ) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._random = chance
        self._number = number
        self._reach = reach
        self._reducer = reducer
        self._life = 0
        self.running = False
        self.name = ""
        self.view = View(JOB, "")
        self.worlds: list[int] = []
        self.stale = 0

    @property
    def host(self) -> int:
        """Its place in the network."""
        return -2 - self._number

    # --------------------------------------------------------------------------------------------------- its process

    def start(self) -> None:
        """A new process: it reads the log, then serves."""
        self._life += 1
        life = self._life
        self.running = True
        self.name = f"membership-{self._number}-{life}"
        self.view = View(JOB, self.name)
        self.worlds = []
        self._alarm: float | None = None
        self._outbox: deque[tuple[Out, str, float]] = deque()
        self._under_way: set[tuple[str, str]] = set()
        self._publishing: tuple[Out, Post] | None = None
        self._pending: set[Any] = set()
        self._dials = 0
        self._link = Link(
            self._broker,
            self._random,
            host=self.host,
            name=self.name,
            runs=lambda: self.running and self._life == life,
            kinds=None,
            on_entry=self._on_entry,
            on_pulse=self._on_pulse,
            on_notice=self._on_notice,
        )
        for entry in self._broker.log if self._broker.up else ():
            self._read(entry)
        self._link.seen = len(self._broker.log) if self._broker.up else 0
        self._link.open()
        self._clock.after(TICK, self._tick, life)

    def kill(self) -> None:
        """The process dies."""
        self.running = False
        self._life += 1
        self._link.end(reset=True)

    def stop(self) -> None:
        """The process is stopped (SIGSTOP, a long pause)."""
        self.running = False

    def resume(self) -> None:
        """It runs again, with what it knew, and finds what has arrived since."""
        self.running = True
        self._link.resume()

    # --------------------------------------------------------------------------------------------------------- inputs

    def _read(self, entry: Entry) -> None:
        self._absorb(Told(JOB, entry.event, self._clock.now, seq=entry.seq, live=False, id=entry.id, at=entry.at))

    def _on_entry(self, entry: Entry) -> None:
        self._tell(
            Told(JOB, entry.event, self._clock.now, seq=entry.seq, trace=f"{entry.seq}", id=entry.id, at=entry.at)
        )

    def _on_pulse(self, pulse: WorkerPulse | NodePulse) -> None:
        self._tell(Told(JOB, pulse, self._clock.now, at=self._broker.wall))

    def _on_notice(self, client_id: int, name: str) -> None:
        self._tell(Told(JOB, Disconnected(client_id, name), self._clock.now, at=self._broker.wall))

    def _tick(self, life: int) -> None:
        if life != self._life:
            return
        self._clock.after(TICK, self._tick, life)
        if self.running:
            self._tell(Told(JOB, Tick(), self._clock.now, at=self._broker.wall))

    def _ring_alarm(self, life: int, when: float) -> None:
        if life == self._life and self._alarm == when:
            self._alarm = None
            if self.running:
                self._tell(Told(JOB, Tick(), self._clock.now, at=self._broker.wall))

    def _absorb(self, told: Told) -> Decision[View]:
        before = self.view.record.generation
        decision = self._reducer(self.view, told)
        self.view = decision.state
        if self.view.record.generation != before:
            self.worlds.append(self.view.record.generation)
        return decision

    def _tell(self, told: Told) -> None:
        decision = self._absorb(told)
        if decision.wake is not None:
            when = self._clock.now + decision.wake
            if self._alarm is None or when < self._alarm:
                self._alarm = when
                self._clock.at(when, self._ring_alarm, self._life, when)
        for out in decision.out:
            key = (kind_of(out.event), out.id)
            if key not in self._under_way:
                self._under_way.add(key)
                until = float("inf") if out.within is None else self._clock.now + out.within
                self._outbox.append((out, key[0], until))
        self._publish()
        for action in decision.do:
            if action not in self._pending:
                self._pending.add(action)
                self._try(self._life, action, 0)

    # -------------------------------------------------------------------------------------------------------- outputs

    def _publish(self) -> None:
        if self._publishing is not None or not self._outbox:
            return
        out, kind, until = self._outbox.popleft()
        life = self._life
        deadline = min(PUBLISH_DEADLINE, until - self._clock.now)
        if deadline <= 0.0:
            self._published(out, kind)
            return

        def done(answer: Answer) -> None:
            if life != self._life:
                return
            self.stale += answer == "stale"
            self._published(out, kind)

        post = self._link.post(out.event, out.id, expect_last=out.expect_last, done=done)
        self._publishing = (out, post)
        self._clock.after(deadline, self._give_up, life, out, kind, post)

    def _give_up(self, life: int, out: Out, kind: str, post: Post) -> None:
        if life == self._life and self._link.withdraw(post):
            self._published(out, kind)

    def _published(self, out: Out, kind: str) -> None:
        self._under_way.discard((kind, out.id))
        self._publishing = None
        self._publish()

    # --------------------------------------------------------------------------------------------------------- dials

    def _try(self, life: int, dial: Dial, number: int) -> None:
        """Dial, and again for a moment while somebody listens: a dying process may still do."""
        if life != self._life:
            return
        reach = self._reach(dial.address, self._random.random())
        if reach == "open":
            if number + 1 < len(DIALS):
                self._clock.after(DIALS[number + 1], self._try, life, dial, number + 1)
            else:
                self._pending.discard(dial)
            return
        refused = reach == "refused"
        event = WorkerUnreachable(
            worker=dial.worker,
            incarnation=dial.incarnation,
            address=dial.address,
            refused=refused,
            error="Connection refused" if refused else f"no answer within {DIAL_TIMEOUT:g} s",
            observer=self.name,
        )
        self._dials += 1
        unique = "refused" if refused else f"{self.name}/{self._dials}"
        id_ = f"unreachable/{JOB}/{dial.worker}/{dial.incarnation}/{unique}"
        self._clock.after(0.004 if refused else DIAL_TIMEOUT, self._found, life, dial, event, id_)

    def _found(self, life: int, dial: Dial, event: WorkerUnreachable, id_: str) -> None:
        if life == self._life:
            self._pending.discard(dial)
            self._link.post(event, id_)
