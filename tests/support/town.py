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
    AgentJoined,
    AgentLeft,
    DrainAsked,
    Event,
    JobFinished,
    JobScaled,
    JobStopAsked,
    JobSubmitted,
    NodePulse,
    RingBroken,
    StepsCommitted,
    TargetsSet,
    Terms,
    WorkerCaughtUp,
    WorkerDying,
    WorkerExited,
    WorkerFailed,
    WorkerFinished,
    WorkerLeaving,
    WorkerPulse,
    WorkerRefused,
    WorkerRegistered,
    WorkerStarted,
    WorkerUnreachable,
    WorldChanged,
    kind_of,
)
from reknit.core.service import Disconnected, Out, Tick, Told
from reknit.services.membership.decide import Dial, decide
from reknit.services.membership.view import View

JOB = "job"
TERMS = Terms(slots=8, micro_batch=4, samples=320, epochs=1, seed=0, parameters=("w float32 4x2",), numerics={"t": "1"})


@dataclasses.dataclass
class House:
    """One running membership service."""

    view: View
    alarm: float | None = None


@dataclasses.dataclass
class Body:
    """One worker process as the world sees it."""

    worker: str
    node: str
    incarnation: int
    pid: int
    address: str
    client_id: int
    beats: bool = True
    phase: str = "compute"
    step: int = 0
    in_phase: float = 0.0
    step_seconds: float = 0.1
    dial: str = "open"
    """How its address answers: open, refused, silent."""
    dial_seconds: float = 0.002
    """How long a refusal takes to be on the log."""


class Town:
    """See the module."""

    def __init__(self, houses: int = 1, **spec: Any) -> None:
        self.now = 1000.0
        self.log: list[tuple[int, Event, str]] = []
        self.ids: set[tuple[str, str]] = set()
        self.houses = [House(View(JOB, f"m{i}")) for i in range(houses)]
        self.bodies: dict[str, Body] = {}
        self.nodes: dict[str, bool] = {}
        self.lag = 0.0
        """Seconds by which every service but the first hears the log later."""
        self.ring: int | None = None
        """Generation that all beat with, None: the newest."""
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
        self._numbers = itertools.count(1)
        self._order = itertools.count(1)
        self._client = itertools.count(101)
        self.learn: float | None = 0.0
        """Seconds that a newcomer takes to learn, once it has registered and somebody can teach it; None: for ever."""
        self.holders: set[tuple[str, int]] = set()
        """Lives that really have the state, whatever the service believes."""
        self._next_tick = self.now
        self._next_beat = self.now + 0.05
        if spec.pop("submit", True):
            self.submit(**spec)

    # ------------------------------------------------------------------------------------------------------- told

    def submit(self, run: str = "run1", **spec: Any) -> None:
        values: dict[str, Any] = {"max_nodes": 8, "last_call": 3.0, "script": "train.py", **spec}
        self.say(JobSubmitted(run=run, **values))

    @property
    def run_id(self) -> str:
        return next(e.run for _, e, _ in reversed(self.log) if isinstance(e, JobSubmitted))

    def node(self, name: str, nproc: int = 1) -> None:
        self.nodes[name] = True
        self.say(
            AgentJoined(node=name, run=self.run_id, host="127.0.0.1", pid=1, nproc=nproc, client_id=next(self._client))
        )

    def start(self, worker: str, incarnation: int = 1, node: str | None = None) -> Body:
        node = node or worker.rpartition("-")[0] or f"node-{worker}"
        if node not in self.nodes:
            self.node(node)
        number = next(self._numbers)
        body = Body(worker, node, incarnation, 100 + number, f"127.0.0.1:{4000 + number}", next(self._client))
        self.say(WorkerStarted(worker=worker, incarnation=incarnation, node=node, pid=body.pid))
        return body

    def register(self, worker: str, incarnation: int = 1, node: str | None = None, **changes: Any) -> Body:
        body = self.start(worker, incarnation, node)
        self.bodies[worker] = body
        self.again(worker, **changes)
        return body

    def _study(self, body: Body) -> None:
        """The body learns: from members of a ring that runs, beside the ring or in it."""
        life = (body.worker, body.incarnation)
        if self.bodies.get(body.worker) is not body or not body.beats or life in self.holders:
            return
        if self._teachers():
            self.caught_up(body.worker)
        else:
            self.later(0.05, lambda: self._study(body))

    def _teachers(self) -> set[tuple[str, int]]:
        """Lives that have the state and are in a ring that runs."""
        if not self.worlds or self.world.status != "running":
            return set()
        alive = {(b.worker, b.incarnation) for b in self.bodies.values() if b.beats}
        return self._lives(self.world) & self.holders & alive

    @staticmethod
    def _lives(world: WorldChanged) -> set[tuple[str, int]]:
        return {(m.worker, m.incarnation) for m in world.members}

    def caught_up(self, worker: str) -> None:
        """The body has received the state and all results since."""
        body = self.bodies[worker]
        self.holders.add((worker, body.incarnation))
        generation = self.world.generation if self.worlds else 0
        self.say(
            WorkerCaughtUp(
                worker=worker, incarnation=body.incarnation, generation=generation, step=self.step, seconds=0.1
            )
        )

    @property
    def step(self) -> int:
        """Steps committed."""
        return max((e.last + 1 for _, e, _ in self.log if isinstance(e, StepsCommitted)), default=0)

    def again(self, worker: str, **changes: Any) -> None:
        """The body registers (once more)."""
        body = self.bodies[worker]
        values: dict[str, Any] = {
            "worker": worker,
            "incarnation": body.incarnation,
            "node": body.node,
            "run": self.run_id,
            "pid": body.pid,
            "address": body.address,
            "terms": TERMS,
            "client_id": body.client_id,
            **changes,
        }
        body.incarnation = values["incarnation"]
        self.say(WorkerRegistered(**values))
        if self.learn is not None:
            self.later(self.learn, lambda: self._study(body))

    def begin(self, *workers: str) -> WorldChanged:
        """Register these and let the first world be made."""
        for worker in workers:
            self.register(worker)
        self.run(4.0)
        assert self.world.status == "running", self.world
        return self.world

    def kill(self, worker: str, *, signal: int = 9, silent: bool = False) -> None:
        """The process dies; its agent says so unless `silent`."""
        body = self.bodies[worker]
        body.beats, body.dial = False, "refused"
        if not silent:
            self.exited(worker, code=-signal)

    def exited(self, worker: str, code: int = -9, **more: Any) -> None:
        body = self.bodies[worker]
        body.beats, body.dial = False, "refused"
        self.say(
            WorkerExited(worker=worker, incarnation=body.incarnation, node=body.node, pid=body.pid, code=code, **more)
        )

    def dies(self, worker: str, exit_after: float | None = 0.03, *, expected: bool = False) -> None:
        """The kernel begins to end the process, which is told at once; it is reaped a while later, or never."""
        body = self.bodies[worker]
        body.beats, body.dial = False, "refused"
        dying = WorkerDying(
            worker=worker, incarnation=body.incarnation, node=body.node, pid=body.pid, expected=expected
        )
        self.say(dying)
        if exit_after is not None:
            exited = WorkerExited(
                worker=worker, incarnation=body.incarnation, node=body.node, pid=body.pid, code=-9, expected=expected
            )
            self.later(exit_after, lambda: self.say(exited) and None)

    def failed(self, worker: str, error: str = "ValueError: boom", step: int = 0) -> None:
        body = self.bodies[worker]
        self.say(
            WorkerFailed(
                worker=worker,
                incarnation=body.incarnation,
                error=error,
                traceback=f"Traceback:\n  x\n{error}\n",
                step=step,
            )
        )
        self.exited(worker, code=1)

    def leaving(self, worker: str) -> None:
        self.say(WorkerLeaving(worker=worker, incarnation=self.bodies[worker].incarnation))

    def idle(self, worker: str) -> None:
        self.say(WorkerLeaving(worker=worker, incarnation=self.bodies[worker].incarnation, idle=True))

    def scale(self, workers: int) -> None:
        self.say(JobScaled(workers=workers))

    def drain(self, target: str) -> None:
        self.say(DrainAsked(target=target))

    def stop(self, *, at_once: bool = False) -> None:
        self.say(JobStopAsked(at_once=at_once))

    def finished(self, worker: str, step: int = 9, generation: int | None = None) -> None:
        body = self.bodies[worker]
        body.beats = False
        self.say(
            WorkerFinished(
                worker=worker,
                incarnation=body.incarnation,
                generation=self.world.generation if generation is None else generation,
                step=step,
                state_hash="h",
            )
        )

    def broken(self, worker: str, peer: str, generation: int | None = None, error: str = "reset") -> None:
        self.say(
            RingBroken(
                worker=worker,
                incarnation=self.bodies[worker].incarnation,
                generation=self.world.generation if generation is None else generation,
                step=0,
                peer=peer,
                side="next",
                error=error,
            )
        )

    def committed(self, last: int, first: int = 0) -> None:
        self.say(
            StepsCommitted(
                run=self.run_id, first=first, last=last, generation=self.world.generation, ranges=(), slots=8
            )
        )

    def node_left(self, node: str) -> None:
        self.nodes[node] = False
        self.say(AgentLeft(node=node))

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
                self.pulse(NodePulse(node=node))
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
        if isinstance(event, WorldChanged):
            self._worlds.append(event)
            if event.status == "running" and not self._teachers():  # they begin together
                self.holders |= self._lives(event)
        self.ids.add((kind, id_ or f"#{seq}"))
        for i, house in enumerate(self.houses):
            if i and self.lag:
                self.later(self.lag, lambda house=house: self._tell(house, event, seq))
            else:
                self._tell(house, event, seq)
        return True

    def _tell(self, house: House, what: Any, seq: int = 0) -> None:
        decision = decide(house.view, Told(JOB, what, self.now, seq=seq, trace=f"00-{seq}-b-01" if seq else ""))
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
            view = decide(view, Told(JOB, event, self.now, seq=seq, live=False)).state
        return view
