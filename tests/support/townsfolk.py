"""The people of a town: worker processes and agents, what they do and say, who of them has the state."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    DrainAsked,
    Event,
    JobScaled,
    JobStopAsked,
    JobSubmitted,
    RingBroken,
    StepsCommitted,
    Terms,
    WorkerCaughtUp,
    WorkerDying,
    WorkerExited,
    WorkerFailed,
    WorkerFinished,
    WorkerLeaving,
    WorkerRegistered,
    WorkerStarted,
    WorldChanged,
)

TERMS = Terms(slots=8, micro_batch=4, samples=320, epochs=1, seed=0, parameters=("w float32 4x2",), numerics={"t": "1"})


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


class Townsfolk:
    """What happens in a town; `Town` adds the log, the services and the clock.

    Attributes:
        bodies: worker -> its newest process.
        nodes: node -> is its agent there?
        learn: seconds that a newcomer takes to learn, once it has registered and somebody can teach it; None: for ever.
        holders: lives that really have the state, whatever the service believes.
    """

    log: list[tuple[int, Event, str]]
    worlds: list[WorldChanged]
    world: WorldChanged
    say: Callable[..., bool]
    later: Callable[..., None]
    run: Callable[[float], None]

    def __init__(self) -> None:
        self.bodies: dict[str, Body] = {}
        self.nodes: dict[str, bool] = {}
        self.learn: float | None = 0.0
        self.holders: set[tuple[str, int]] = set()
        self._numbers = itertools.count(1)
        self._client = itertools.count(101)

    def submit(self, run: str = "run1", **spec: Any) -> None:
        values: dict[str, Any] = {"max_nodes": 8, "last_call": 3.0, "script": "train.py", **spec}
        self.say(JobSubmitted(run=run, **values))

    @property
    def run_id(self) -> str:
        return next(e.run for _, e, _ in reversed(self.log) if isinstance(e, JobSubmitted))

    def node(self, name: str, nproc: int = 1) -> None:
        self.nodes[name] = True
        self.say(
            AgentJoined(
                node=name,
                run=self.run_id,
                host="127.0.0.1",
                pid=1,
                nproc=nproc,
                client_id=next(self._client),
                gossip=f"{name}:7000",
            )
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

    def study(self, body: Body) -> None:
        """The body learns: from members of a ring that runs, beside the ring or in it."""
        life = (body.worker, body.incarnation)
        if self.bodies.get(body.worker) is not body or not body.beats or life in self.holders:
            return
        if self.teachers():
            self.caught_up(body.worker)
        else:
            self.later(0.05, lambda: self.study(body))

    def teachers(self) -> set[tuple[str, int]]:
        """Lives that have the state and are in a ring that runs."""
        if not self.worlds or self.world.status != "running":
            return set()
        alive = {(b.worker, b.incarnation) for b in self.bodies.values() if b.beats}
        return self.lives_of(self.world) & self.holders & alive

    @staticmethod
    def lives_of(world: WorldChanged) -> set[tuple[str, int]]:
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
            self.later(self.learn, lambda: self.study(body))

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

    def dies(
        self, worker: str, exit_after: float | None = 0.03, *, expected: bool = False, others: tuple[str, ...] = ()
    ) -> None:
        """The kernel begins to end the process, which is told at once; it is reaped a while later, or never."""
        body = self.bodies[worker]
        body.beats, body.dial = False, "refused"
        dying = WorkerDying(
            worker=worker,
            incarnation=body.incarnation,
            node=body.node,
            pid=body.pid,
            expected=expected,
            others={other: self.bodies[other].pid for other in others},
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

    def broken(
        self, worker: str, peer: str, generation: int | None = None, error: str = "reset", *, unmade: bool = False
    ) -> None:
        self.say(
            RingBroken(
                worker=worker,
                incarnation=self.bodies[worker].incarnation,
                generation=self.world.generation if generation is None else generation,
                step=0,
                peer=peer,
                side="next",
                error=error,
                unmade=unmade,
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
