"""A log on a desk: drives a reducer without a broker, and gives back to it what it publishes, as the runner would."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from reknit.core.events import AnyEvent, AnyPulse, Event, kind_of
from reknit.core.service import Decision, Out, Tick, Told

S = TypeVar("S")


@dataclasses.dataclass
class Desk(Generic[S]):
    """One job's log and one reducer.

    `publish` appends an event as somebody else would, `tick` lets time go on; what the reducer asks for is stored with
    the broker's rules (an id once, compare-and-set) and told to it. With `lose` set its publications get lost.
    """

    decide: Callable[[S, Told], Decision[S]]
    state: S
    now: float = 100.0
    job: str = "j"
    lose: bool = False
    log: list[tuple[AnyEvent, str]] = dataclasses.field(default_factory=list)
    said: list[Out] = dataclasses.field(default_factory=list)
    done: list[Any] = dataclasses.field(default_factory=list)

    def publish(self, *events: AnyEvent) -> list[Out]:
        before = len(self.said)
        for event in events:
            self._append(event, f"id-{len(self.log)}")
        return self.said[before:]

    def pulse(self, *pulses: AnyPulse) -> None:
        for pulse in pulses:
            self._tell(Told(self.job, pulse, self.now))

    def tick(self, seconds: float = 0.25, every: float = 0.25) -> list[Out]:
        before = len(self.said)
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += every
            self._tell(Told(self.job, Tick(), self.now))
        return self.said[before:]

    def replayed(self, fresh: S) -> S:
        """Return the state that a restarted service has once it has read the log."""
        for seq, (event, id_) in enumerate(self.log, start=1):
            decision = self.decide(fresh, Told(self.job, event, self.now, seq, live=False, trace="t", id=id_))
            assert isinstance(decision, Decision)
            fresh = decision.state
        return fresh

    def restart(self, fresh: S) -> None:
        """Kill the service and start it again."""
        self.state = self.replayed(fresh)

    def events(self, kind: type) -> list[Any]:
        return [event for event, _ in self.log if isinstance(event, kind)]

    def _append(self, event: AnyEvent, id_: str) -> None:
        self.log.append((event, id_))
        self._tell(Told(self.job, event, self.now, seq=len(self.log), id=id_, trace="t"))

    def _tell(self, told: Told) -> None:
        decision = self.decide(self.state, told)
        self.state = decision.state
        self.done += decision.do
        for out in decision.out:
            self.said.append(out)
            if not self.lose:
                self._store(out)

    def _store(self, out: Out) -> None:
        assert isinstance(out.event, Event)
        if any(id_ == out.id for _, id_ in self.log):
            return
        last = max((i for i, (e, _) in enumerate(self.log, 1) if kind_of(e) == kind_of(out.event)), default=0)
        if out.expect_last is None or out.expect_last == last:
            self._append(out.event, out.id)
