"""Honest histories of a run, made at random: deaths, joins, lost results, restores, repeated and late records.

What real workers publish in such a history is what the ledger must accept; a planted fault is one change of it.
"""

from __future__ import annotations

import dataclasses
import random

import xxhash

from reknit.core.events import (
    AnyEvent,
    CheckpointCommitted,
    CheckpointRestored,
    JobFinished,
    JobSubmitted,
    Member,
    Range,
    StepsCommitted,
    Terms,
    WorkerCaughtUp,
    WorkerRegistered,
    WorldChanged,
)
from reknit.core.ledger import course_of
from reknit.core.plan import split


def member(worker: str, incarnation: int = 1, role: str = "active", node: str = "") -> Member:
    return Member(
        worker=worker,
        incarnation=incarnation,
        node=node or worker.rpartition("-")[0] or "n",
        pid=1000 + incarnation,
        address="127.0.0.1:1",
        role=role,
    )


def registered(worker: str, terms: Terms, run: str = "r1", incarnation: int = 1, node: str = "") -> WorkerRegistered:
    m = member(worker, incarnation, node=node)
    return WorkerRegistered(
        worker=worker, incarnation=incarnation, node=m.node, run=run, pid=m.pid, address=m.address, terms=terms
    )


def world(generation: int, *members: Member, run: str = "r1", status: str = "running", **more: object) -> WorldChanged:
    return WorldChanged(generation=generation, run=run, status=status, members=members, **more)


def chain_of(step: int, seed: int = 0) -> int:
    """The chain that the step leaves: a run's results depend on nothing but the step."""
    return xxhash.xxh3_64_intdigest(f"{seed}/{step}".encode()) or 1


@dataclasses.dataclass
class History:
    """A run in progress; each method appends what the workers of it would publish."""

    terms: Terms
    workers: list[str]
    run: str = "r1"
    generation: int = 0
    events: list[AnyEvent] = dataclasses.field(default_factory=list)
    late: list[StepsCommitted] = dataclasses.field(default_factory=list)
    step: int = 0
    saved: int = 0
    next_worker: int = 0

    def __post_init__(self) -> None:
        self.course = course_of(self.terms)
        self.next_worker = len(self.workers)
        self.events.append(JobSubmitted(run=self.run, script="train.py"))
        self.events += [registered(w, self.terms, self.run) for w in self.workers]
        self.change(added=tuple(self.workers))

    def change(self, added: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> None:
        self.generation += 1
        members = [member(w) for w in self.workers]
        self.events.append(world(self.generation, *members, run=self.run, added=added, removed=removed))

    def ranges(self, rng: random.Random) -> tuple[Range, ...]:
        weights = [rng.choice((1.0, 1.0, 3.0)) for _ in self.workers]
        return split(self.terms.slots, self.workers, weights)

    def record(self, first: int, last: int, ranges: tuple[Range, ...], again: int = 0) -> StepsCommitted:
        chains = tuple(chain_of(s, self.terms.seed) for s in range(first, last + 1))
        return StepsCommitted(
            run=self.run,
            first=first,
            last=last,
            generation=self.generation,
            ranges=ranges,
            slots=self.terms.slots,
            chains=chains,
            loss=1.0 / (1 + last),
            computed_again=again,
        )

    def commit(self, rng: random.Random, *, ranges: tuple[Range, ...] | None = None, again: int = 0) -> None:
        last = min(self.step + rng.choice((1, 1, 2, 5)), self.course.steps) - 1
        if again:
            last = self.step
        if last >= self.step:
            self.events.append(self.record(self.step, last, ranges or self.ranges(rng), again))
            self.step = last + 1
        if self.late and rng.random() < 0.5:
            self.events.append(self.late.pop(0))

    def lose_one(self, rng: random.Random) -> None:
        """A worker dies; its slots of the step in flight go to its neighbours, the others keep what they computed."""
        gone = rng.choice(self.workers)
        before = self.ranges(rng)
        first_died = gone == self.workers[0]
        if first_died and self.step < self.course.steps:
            # committed, and its record is on its way: the next first worker tells the same, then the late one comes
            record = self.record(self.step, self.step, before)
            self.step += 1
            self.late.append(record)
            self.workers.remove(gone)
            self.change(removed=(gone,))
            self.events.append(dataclasses_replace(record, generation=self.generation))
        else:
            self.workers.remove(gone)
            self.change(removed=(gone,))
        if self.step < self.course.steps:
            taken, again = taken_over(before, gone, self.workers)
            self.commit(rng, ranges=taken, again=again)

    def lose_result(self, rng: random.Random) -> None:
        """All that had the newest result die; it was told, and the others compute the step again."""
        if self.step >= self.course.steps or len(self.workers) < 2:
            return
        self.events.append(self.record(self.step, self.step, self.ranges(rng)))
        gone = self.workers.pop(0)
        self.change(removed=(gone,))
        self.events.append(self.record(self.step, self.step, self.ranges(rng), again=self.terms.slots))
        self.step += 1

    def join(self, _rng: random.Random) -> None:
        new = f"w-{self.next_worker}"
        self.next_worker += 1
        self.events.append(registered(new, self.terms, self.run))
        self.workers.append(new)
        self.change(added=(new,))
        self.events.append(WorkerCaughtUp(worker=new, incarnation=1, generation=self.generation, step=self.step))

    def save(self, _rng: random.Random) -> None:
        self.saved = self.step
        self.events.append(
            CheckpointCommitted(checkpoint=f"c{self.step}", step=self.step, path="p", bytes=1, seconds=0.1)
        )

    def lose_all(self, rng: random.Random) -> None:
        """All die, new ones restore the newest checkpoint; a suspended one may tell of the lost line afterwards."""
        if rng.random() < 0.5 and self.step < self.course.steps:
            self.late.append(self.record(self.step, self.step, self.ranges(rng)))
        gone = tuple(self.workers)
        self.workers = [f"w-{self.next_worker + i}" for i in range(rng.randint(1, 3))]
        self.next_worker += len(self.workers)
        self.events += [registered(w, self.terms, self.run) for w in self.workers]
        self.change(added=tuple(self.workers), removed=gone)
        self.step = self.saved
        self.events.append(
            CheckpointRestored(
                run=self.run,
                checkpoint=f"c{self.saved}" if self.saved else "",
                step=self.saved,
                worker=self.workers[0],
                generation=self.generation,
                chain=chain_of(self.saved - 1, self.terms.seed) if self.saved else 0,
            )
        )

    def finish(self, rng: random.Random) -> None:
        while self.step < self.course.steps:
            self.commit(rng)
        self.events += self.late
        self.late = []
        self.events.append(JobFinished(run=self.run, outcome="completed", step=self.step))


def dataclasses_replace(record: StepsCommitted, **change: object) -> StepsCommitted:
    import msgspec

    return msgspec.structs.replace(record, **change)


def taken_over(before: tuple[Range, ...], gone: str, left: list[str]) -> tuple[tuple[Range, ...], int]:
    """Give the slots of `gone` in halves to its neighbours."""
    ranges = [r for r in before if r.end > r.first]
    at = next((i for i, r in enumerate(ranges) if r.worker == gone), None)
    if at is None:
        return before, 0
    orphan = ranges.pop(at)
    left_worker = ranges[at - 1].worker if at > 0 else ""
    right_worker = ranges[at].worker if at < len(ranges) else ""
    if not left_worker and not right_worker:
        return (Range(worker=left[0], first=orphan.first, end=orphan.end),), orphan.end - orphan.first
    middle = (orphan.first + orphan.end) // 2
    if not left_worker:
        middle = orphan.first
    if not right_worker:
        middle = orphan.end
    ranges[at:at] = [
        Range(worker=w, first=a, end=b)
        for w, a, b in ((left_worker, orphan.first, middle), (right_worker, middle, orphan.end))
        if b > a
    ]
    return tuple(ranges), orphan.end - orphan.first


def random_history(seed: int, *, finish: bool = True) -> History:
    """A whole random run."""
    rng = random.Random(seed)
    terms = Terms(
        slots=rng.choice((1, 2, 4, 8)),
        micro_batch=rng.randint(1, 5),
        samples=rng.randint(1, 200),
        epochs=rng.randint(1, 3),
        seed=rng.randint(0, 99),
    )
    history = History(terms, [f"w-{i}" for i in range(rng.randint(1, 4))])
    for _ in range(rng.randint(0, 25)):
        if len(history.workers) > 1:
            what = rng.choice(("commit", "commit", "lose_one", "lose_result", "join", "save", "lose_all"))
        else:
            what = rng.choice(("commit", "commit", "join", "save", "lose_all"))
        getattr(history, what)(rng)
    if finish:
        history.finish(rng)
    return history
