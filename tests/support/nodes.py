"""A node for the agent's reducer whose processes are numbers: fed with inputs, it keeps what was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from reknit.core.events import (
    Event,
    Member,
    TargetsSet,
    Terms,
    WorkerRegistered,
    WorldChanged,
)
from reknit.worker.agent.actions import Action, Post
from reknit.worker.agent.decide import decide
from reknit.worker.agent.incarnation import next_incarnation
from reknit.worker.agent.inputs import Began, Dying, Exited, Forked, Heard, Input, Ticked
from reknit.worker.agent.state import Place, fresh
from reknit.worker.agent.stuck import Look

T = TypeVar("T")
JOINED = 10
TERMS = Terms(slots=2, micro_batch=1, samples=4, epochs=1, seed=0)


class Node:
    """A node whose processes are numbers."""

    def __init__(self, nproc: int = 2, *, begin: bool = True) -> None:
        new = fresh("w0", "job", "run", nproc, grace=5, evict_grace=1, host="h", pid=1)
        self.state = replace(new, joined=JOINED)
        self.now = 0.0
        self.seq = JOINED
        self.did: list[Action] = []
        self.pids = 100
        if begin:
            self.joined()

    def joined(self) -> None:
        self.feed(Began(self.now))

    def feed(self, told: Input) -> list[Action]:
        decision = decide(self.state, told)
        self.state = decision.state
        self.did.extend(decision.do)
        return list(decision.do)

    def hear(self, event: Event, seq: int | None = None, ahead: float = 0.0) -> list[Action]:
        self.seq += 1
        return self.feed(Heard(event, seq or self.seq, self.now, ahead))  # type: ignore[arg-type]

    def tick(self, seconds: float = 0.25, letter: str = "S") -> list[Action]:
        self.now += seconds
        return self.feed(Ticked(self.now, {p.worker: Look(letter) for p in self.state.places if p.phase == "alive"}))

    def fork(self) -> None:
        """Make the processes that were asked for."""
        for place in self.state.places:
            if place.phase == "forking":
                self.pids += 1
                new = next_incarnation(int(self.now * 1000), place.attempt, place.incarnation)
                self.feed(Forked(place.worker, new, self.pids, self.now))

    def register(self, index: int = 0) -> list[Action]:
        place = self.place(index)
        return self.hear(
            WorkerRegistered(
                worker=place.worker,
                incarnation=place.incarnation,
                node="w0",
                run="run",
                pid=place.pid,
                address="h:1",
                terms=TERMS,
            )
        )

    def targets(self, *, spares: int = 0, **targets: int) -> list[Action]:
        return self.hear(TargetsSet(run="run", targets=targets, spares=spares))

    def world(self, *indexes: int, status: str = "running", spares: tuple[int, ...] = ()) -> list[Action]:
        members = tuple(
            Member(
                worker=place.worker,
                incarnation=place.incarnation,
                node="w0",
                pid=place.pid,
                address="h:1",
                role="spare" if index in spares else "active",
            )
            for index, place in ((i, self.place(i)) for i in indexes)
        )
        return self.hear(WorldChanged(generation=1, run="run", status=status, members=members))  # type: ignore[arg-type]

    def train(self) -> Node:
        """All workers forked, registered and in a world."""
        self.fork()
        indexes = [i for i, p in enumerate(self.state.places) if p.phase == "alive"]
        for i in indexes:
            self.register(i)
        self.world(*indexes)
        return self

    def dying(self, index: int = 0) -> list[Action]:
        place = self.place(index)
        return self.feed(Dying(worker=place.worker, pid=place.pid, now=self.now))

    def exit(self, index: int = 0, code: int = -9, **fields: object) -> list[Action]:
        place = self.place(index)
        return self.feed(Exited(worker=place.worker, pid=place.pid, code=code, now=self.now, **fields))  # type: ignore[arg-type]

    def place(self, index: int = 0) -> Place:
        return self.state.places[index]

    def all(self, kind: type[T]) -> list[T]:
        """Actions of a kind, or events posted of a kind."""
        found = [a for a in self.did if isinstance(a, kind)]
        return found + [a.event for a in self.did if isinstance(a, Post) and isinstance(a.event, kind)]

    def last(self, kind: type[T]) -> T:
        return self.all(kind)[-1]
