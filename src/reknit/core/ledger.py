"""The ledger: a fold of the log that proves that every sample is in exactly one committed step, once an epoch.

    proof = verify(await bus.backlog(job=job))     # or any iterable of events, in log order
    print(proof.text()); sys.exit(0 if proof.ok else 1)

A run has one *line* of committed steps. `checkpoint.restored` cuts it: steps from the restored one on that were
committed in an earlier generation belong to a lost line, also if their records are heard only afterwards; the same
steps come again. Records may be told twice (a first worker dies before its publication is known); equal ones are one.
Two records of one step with equal chains, other owners and different generations mean that all who had the result
were lost and the others computed the step again, bit for bit: the newer one counts. Everything else that overlaps
is a contradiction. Memory: 32 bytes a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reknit.core.errors import UsageError
from reknit.core.events import (
    AnyEvent,
    CheckpointRestored,
    Event,
    JobFinished,
    JobSubmitted,
    StepsCommitted,
    Terms,
    WorkerRegistered,
    WorldChanged,
)
from reknit.core.line import ABSENT, Line
from reknit.core.order import Course, permute
from reknit.core.proof import EpochProof, Proof

MOST_PROBLEMS = 20
"""A broken ledger is broken after twenty reasons; the rest is counted."""
MOST_COUNTED = 1 << 27
"""Ids that one proof generates and counts, over all epochs (half a minute); one byte a sample of memory."""
_CHUNK = 1 << 20


class Stored(Protocol):
    """An event with its place in the log, as `core.bus.Received` is."""

    @property
    def event(self) -> AnyEvent:
        """The event."""

    @property
    def seq(self) -> int:
        """Its sequence in the log; names the record in problems."""


def course_of(terms: Terms) -> Course:
    """Return the course that a worker's terms describe.

    Raises:
        UsageError: a number in the terms is below 1.
    """
    return Course(terms.samples, terms.micro_batch, terms.slots, terms.epochs, terms.seed)


class Ledger:
    """The fold over a whole log: one `Line` a run, in the order in which the runs began."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self._terms: dict[tuple[str, int], Terms] = {}

    def add(self, event: Event, seq: int) -> None:
        """Take in the next event of the log; events of other areas change nothing."""
        match event:
            case JobSubmitted(run=run):
                self._line(run)
            case WorkerRegistered():
                self._terms[event.worker, event.incarnation] = event.terms
                self._adopt(self._line(event.run), event.terms)
            case WorldChanged(run=run, status="running", members=members):
                self._adopt_from_world(self._line(run), [(m.worker, m.incarnation) for m in members])
            case StepsCommitted():
                self._line(event.run).commit(event, seq)
            case CheckpointRestored():
                self._restore(event, seq)
            case JobFinished():
                self._line(event.run).finished = event
            case _:
                pass

    def _line(self, run: str) -> Line:
        if run not in self.lines:
            self.lines[run] = Line(run)
        return self.lines[run]

    def _adopt(self, line: Line, terms: Terms) -> None:
        if line.course is None:
            try:
                line.course = course_of(terms)
            except UsageError as error:
                line.problems.append(f"the run's terms are no course: {error}")

    def _adopt_from_world(self, line: Line, members: list[tuple[str, int]]) -> None:
        # a worker that was refused may have registered first: the terms that hold are those of who was let in
        if not len(line.generations):
            terms = next((self._terms[m] for m in members if m in self._terms), None)
            if terms is not None:
                line.course = None
                self._adopt(line, terms)

    def _restore(self, event: CheckpointRestored, seq: int) -> None:
        line = self._line(event.run)
        if event.step > 0 and not len(line.generations):
            donor = self._donor(line, event)
            if donor is not None:
                line.inherit(donor, event.step)
        line.restore(event, seq)

    def _donor(self, line: Line, event: CheckpointRestored) -> Line | None:
        earlier = [other for other in reversed(self.lines.values()) if other is not line]
        # more or fewer epochs are no other course: the order of samples up to the restored step is the same
        fitting = [
            other
            for other in earlier
            if _without_epochs(other.course) == _without_epochs(line.course) and other.chain_before(event.step)
        ]
        same_chain = [other for other in fitting if other.chain_before(event.step) == event.chain]
        return next(iter(same_chain or fitting), None)


def _without_epochs(course: Course | None) -> Course | None:
    return None if course is None else dataclasses.replace(course, epochs=1)


def verify(events: Iterable[AnyEvent | Stored], run: str = "", *, most_counted: int = MOST_COUNTED) -> Proof:
    """Prove what the log says about a run.

    Args:
        events: the job's whole log in order: plain events, or `Received`, whose sequence then names records.
        run: which run; empty: the newest in the log.
        most_counted: generate and count at most this many ids; epochs beyond rest on the order's construction.

    Raises:
        UsageError: the log holds no run of this id.
    """
    ledger = Ledger()
    for number, item in enumerate(events, start=1):
        if isinstance(item, Event):
            ledger.add(item, number)
        else:
            ledger.add(item.event, item.seq)
    if run and run not in ledger.lines:
        raise UsageError(f"the log holds no run {run!r}", hint=f"it holds {', '.join(ledger.lines) or 'none'}")
    if not ledger.lines:
        return Proof()
    return prove(ledger.lines[run or next(reversed(ledger.lines))], most_counted)


def prove(line: Line, most_counted: int = MOST_COUNTED) -> Proof:
    """Return the verdict on one run's line."""
    generations = np.array(line.generations, dtype=np.int64)
    present = np.flatnonzero(generations != ABSENT)
    problems = line.problems + [c.text for c in line.contradictions]
    problems += _gaps(generations, present) + _stale(line, generations, present)
    missing = ""
    epochs: tuple[EpochProof, ...] = ()
    course = line.course
    if course is not None:
        epochs = _epochs(course, present, most_counted)
        problems += [f"epoch {e.epoch}: the order repeats a sample" for e in epochs if e.steps == e.of and not e.once]
        ended, missing = _ended(line, course, present)
        problems += ended
    if len(problems) > MOST_PROBLEMS:
        problems = [*problems[:MOST_PROBLEMS], f"and {len(problems) - MOST_PROBLEMS} more"]
    return Proof(
        run=line.run,
        outcome=line.finished.outcome if line.finished else "",
        epochs=epochs,
        steps=len(present),
        steps_in_all=course.steps if course else 0,
        samples=sum(e.samples for e in epochs),
        rollbacks=line.rollbacks,
        lost_steps=line.lost_steps,
        generations=len(np.unique(generations[present])),
        computed_again=line.computed_again,
        duplicates=line.duplicates,
        problems=tuple(problems),
        missing=missing,
    )


def _gaps(generations: npt.NDArray[np.int64], present: npt.NDArray[np.int64]) -> list[str]:
    if not len(present):
        return []
    absent = np.flatnonzero(generations[: present[-1] + 1] == ABSENT)
    runs = np.split(absent, np.flatnonzero(np.diff(absent) > 1) + 1) if len(absent) else []
    return [
        f"no record of step {run[0]}, although step {run[-1] + 1} is committed"
        if len(run) == 1
        else f"no record of steps {run[0]}..{run[-1]}, although step {run[-1] + 1} is committed"
        for run in runs
    ]


def _stale(line: Line, generations: npt.NDArray[np.int64], present: npt.NDArray[np.int64]) -> list[str]:
    seen = generations[present]
    falls = np.flatnonzero(np.diff(seen) < 0)
    return [
        f"record {line.records[present[i + 1]]} commits step {present[i + 1]} in generation {seen[i + 1]}, "
        f"although record {line.records[present[i]]} committed step {present[i]} in generation {seen[i]}"
        for i in falls
    ]


def _epochs(course: Course, present: npt.NDArray[np.int64], most_counted: int) -> tuple[EpochProof, ...]:
    size, proofs, budget = course.steps_an_epoch, [], most_counted
    for epoch in np.unique(present // size).tolist():
        begin, end = np.searchsorted(present, (epoch * size, (epoch + 1) * size))
        positions = (present[begin:end] - epoch * size) * course.batch
        samples = int((np.minimum(positions + course.batch, course.samples) - positions).sum())
        whole = end - begin == size and samples == course.samples
        counted = course.samples <= budget
        if whole and counted:
            budget -= course.samples
        once = whole and (not counted or _once(course, epoch))
        proofs.append(EpochProof(epoch, int(end - begin), size, samples, once, "counted" if counted else "order"))
    return tuple(proofs)


def _once(course: Course, epoch: int) -> bool:
    """Generate all N ids of an epoch, as the workers do: N ids that fill [0, N) have no repetition."""
    met = np.zeros(course.samples, dtype=np.bool_)
    for begin in range(0, course.samples, _CHUNK):
        positions = np.arange(begin, min(begin + _CHUNK, course.samples), dtype=np.uint64)
        ids = permute(positions, course.samples, course.seed, epoch)
        if ids.min() < 0 or ids.max() >= course.samples:
            return False
        met[ids] = True
    return bool(met.all())


def _ended(line: Line, course: Course, present: npt.NDArray[np.int64]) -> tuple[list[str], str]:
    """Return problems of a run that claims to be complete, and what is missing otherwise."""
    count = int(present[-1]) + 1 if len(present) else 0
    if count >= course.steps:
        return [], ""
    rest = f"steps {count}..{course.steps - 1}"
    finished = line.finished
    if finished is None:
        return [], f"{rest} are not committed yet"
    if finished.outcome != "completed":
        return [], f"{rest} were never run: the run {finished.outcome}"
    if 0 < finished.step < course.steps - 1 and count >= finished.step:
        return [], f"{rest} were never run: the script left the loop early"
    return [f"the run completed, but there is no record of {rest}"], ""
