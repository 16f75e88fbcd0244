"""A town without a broker: a log with compare-and-set, one or more membership reducers, workers that beat, one clock.

Everything is deterministic. `town.say(event)` appends to the log and every service hears it; `town.run(seconds)` lets
time pass: ticks at 10 Hz, early ticks that a reducer asks for, heartbeats at 4 Hz of all that beat, answers to dials.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable
from typing import Any

from reknit.core.events import (
    Event,
    JobFinished,
    NodePulse,
    TargetsSet,
    WorkerPulse,
    WorkerRefused,
    WorkerUnreachable,
    WorldChanged,
    kind_of,
)
from reknit.core.service import Disconnected, Out, Tick, Told
from reknit.services.membership.decide import Dial, decide
from reknit.services.membership.view import View
from support.townsfolk import TERMS, Body, Townsfolk

__all__ = ["JOB", "TERMS", "Body", "House", "Town"]

JOB = "job"
EPOCH = 1.7e9
"""What the broker's clock is ahead of the services'."""


@dataclasses.dataclass
class House:
    """One running membership service."""

    view: View
    alarm: float | None = None


class Town(Townsfolk):
    """See the module."""

    def __init__(self, houses: int = 1, **spec: Any) -> None:
        super().__init__()
        self.now = 1000.0
        self.log: list[tuple[int, Event, str]] = []
        self.epoch = EPOCH
        self.stored: list[float] = []
        """When each event of the log was stored, by the broker's clock, which is not that of the services."""
        self.ids: set[tuple[str, str]] = set()
        self.houses = [House(View(JOB, f"m{i}")) for i in range(houses)]
        self.lag = 0.0
        """Seconds by which every service but the first hears the log later."""
        self.ring: int | None = None
        """Generation that all beat with, None: the newest."""
        self.misses: dict[str, tuple[str, ...]] = {}
        """Node -> nodes that its agent gets no answer from, as its heartbeats tell."""
        self.sick: set[str] = set()
        """Nodes whose agents say so of themselves."""
        self.muted = False
        """The broker is away: no heartbeat gets through."""
        self.lost = False
        """Publications of the services do not get through."""
        self.asked = 0
        """Publications asked for."""
        self.stale = 0
        self.dials: list[Dial] = []
        self.reasons: list[str] = []
        self.traces: list[str] = []
        """Of each world, the traceparent that it was published with."""
        self._worlds: list[WorldChanged] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count(1)
        self._next_tick = self.now
        self._next_beat = self.now + 0.05
        if spec.pop("submit", True):
            self.submit(**spec)

    def disconnect(self, client_id: int, name: str = "") -> None:
        for house in self.houses:
            self._tell(house, Disconnected(client_id, name))

    # ------------------------------------------------------------------------------------------------------ looked at

    @property
    def worlds(self) -> list[WorldChanged]:
        return self._worlds

    @property
    def world(self) -> WorldChanged:
        return self.worlds[-1]

    @property
    def members(self) -> list[str]:
        return [m.worker for m in self.world.members]

    @property
    def roles(self) -> dict[str, str]:
        return {m.worker: m.role for m in self.world.members}

    @property
    def targets(self) -> dict[str, int]:
        return next((e.targets for _, e, _ in reversed(self.log) if isinstance(e, TargetsSet)), {})

    @property
    def refusals(self) -> list[WorkerRefused]:
        return [e for _, e, _ in self.log if isinstance(e, WorkerRefused)]

    @property
    def end(self) -> JobFinished | None:
        return next((e for _, e, _ in reversed(self.log) if isinstance(e, JobFinished)), None)

    # ---------------------------------------------------------------------------------------------------------- time

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), call))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while True:
            alarms = [h.alarm for h in self.houses if h.alarm is not None]
            at = min([self._next_tick, self._next_beat, *alarms, *(e[0] for e in self._events[:1])])
            if at > until:
                break
            self.now = max(self.now, at)
            self._step()
        self.now = until

    def until(self, holds: Callable[[], bool], limit: float = 30.0) -> float:
        """Let time pass until it holds; return the seconds it took."""
        begin = self.now
        while not holds():
            assert self.now - begin < limit, f"not within {limit} s"
            self.run(0.001)
        return self.now - begin

    def _step(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
        if self._next_beat <= self.now:
            self._next_beat += 0.25
            self._beat()
        for house in self.houses:
            if house.alarm is not None and house.alarm <= self.now:
                house.alarm = None
                self._tell(house, Tick())
        if self._next_tick <= self.now:
            self._next_tick += 0.1
            for house in self.houses:
                self._tell(house, Tick())

    def _beat(self) -> None:
        if self.muted:
            return
        newest = self.worlds[-1].generation if self.worlds else 0
        for node, up in self.nodes.items():
            if up:
                self.pulse(NodePulse(node=node, silent=self.misses.get(node, ()), sick=node in self.sick))
        for body in self.bodies.values():
            if body.beats:
                self.pulse(
                    WorkerPulse(
                        worker=body.worker,
                        incarnation=body.incarnation,
                        generation=newest if self.ring is None else self.ring,
                        step=body.step,
                        committed=body.step,
                        phase=body.phase,
                        in_phase=body.in_phase,
                        step_seconds=body.step_seconds,
                    )
                )
                body.in_phase += 0.25

    def pulse(self, pulse: WorkerPulse | NodePulse) -> None:
        for house in self.houses:
            self._tell(house, pulse)

    # ----------------------------------------------------------------------------------------------------- plumbing

    def say(self, event: Event, id_: str = "", expect_last: int | None = None) -> bool:
        """Append and deliver; False if compare-and-set or the id refuses it."""
        kind = kind_of(event)
        if id_ and (kind, id_) in self.ids:
            return False
        if expect_last is not None:
            last = next((seq for seq, e, _ in reversed(self.log) if kind_of(e) == kind), 0)
            if last != expect_last:
                self.stale += 1
                return False
        seq = len(self.log) + 1
        self.log.append((seq, event, id_))
        self.stored.append(self.now + self.epoch)
        if isinstance(event, WorldChanged):
            self._worlds.append(event)
            if event.status == "running" and not self.teachers():  # they begin together
                self.holders |= self.lives_of(event)
        self.ids.add((kind, id_ or f"#{seq}"))
        for i, house in enumerate(self.houses):
            if i and self.lag:
                self.later(self.lag, lambda house=house: self._tell(house, event, seq))
            else:
                self._tell(house, event, seq)
        return True

    def _tell(self, house: House, what: Any, seq: int = 0) -> None:
        at = self.stored[seq - 1] if seq else self.now + self.epoch
        trace = f"00-{seq}-b-01" if seq else ""
        decision = decide(house.view, Told(JOB, what, self.now, seq=seq, trace=trace, at=at))
        house.view = decision.state
        if decision.reason:
            self.reasons.append(decision.reason)
        if decision.wake is not None:
            at = self.now + decision.wake
            house.alarm = at if house.alarm is None else min(at, house.alarm)
        for out in decision.out:
            self.later(0.001, lambda out=out: self._publish(out))
        for dial in decision.do:
            self.dials.append(dial)
            self._answer(dial)

    def _publish(self, out: Out) -> None:
        self.asked += 1
        if not self.lost and self.say(out.event, out.id, out.expect_last) and isinstance(out.event, WorldChanged):
            self.traces.append(out.trace)

    def _answer(self, dial: Dial) -> None:
        body = self.bodies.get(dial.worker)
        answer = body.dial if body is not None and body.address == dial.address else "refused"
        if answer == "open":
            return
        refused = answer == "refused"
        event = WorkerUnreachable(
            worker=dial.worker, incarnation=dial.incarnation, address=dial.address, refused=refused, error=answer
        )
        unique = "refused" if refused else str(next(self._numbers))
        name = f"{dial.worker}/{dial.incarnation}/{unique}"
        seconds = (body.dial_seconds if body else 0.002) if refused else 0.5
        self.later(seconds, lambda: self.say(event, name) and None)

    def replay(self) -> View:
        """A fresh service reads the log from its beginning."""
        view = View(JOB, self.houses[0].view.proposer)
        for seq, event, _ in self.log:
            view = decide(view, Told(JOB, event, self.now, seq=seq, live=False, at=self.stored[seq - 1])).state
        return view
