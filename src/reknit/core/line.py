"""The line of committed steps of one run: what the ledger keeps of each step, and when two records contradict.

    line = Line("run-1"); line.course = course; line.commit(record, seq); line.restore(restored, seq)
    line.problems, line.contradictions        # what speaks against it

Four columns of 8 bytes, one entry a step. The rules are told in `core.ledger`.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable

from reknit.core.events import CheckpointRestored, JobFinished, Range, StepsCommitted
from reknit.core.order import Course

ABSENT = -1
"""Generation of a step that is not on the line."""


def owners_of(ranges: Iterable[Range]) -> tuple[tuple[str, int, int], ...]:
    """Return (worker, first, end) in the order given, without empty ranges, neighbours of one worker joined."""
    owners: list[tuple[str, int, int]] = []
    for r in ranges:
        if r.first == r.end:
            continue
        if owners and owners[-1][0] == r.worker and owners[-1][2] == r.first:
            owners[-1] = (r.worker, owners[-1][1], r.end)
        else:
            owners.append((r.worker, r.first, r.end))
    return tuple(owners)


def coverage_fault(ranges: Iterable[Range], slots: int) -> str:
    """Return why the ranges are not a contiguous cover of [0, slots), in words; empty if they are one."""
    at, before = 0, ""
    for worker, first, end in owners_of(ranges):
        if end < first:
            return f"{worker}'s range {first}..{end} runs backwards"
        if first < at:
            return f"slots {first}..{min(at, end) - 1} are in two ranges, of {before} and {worker}"
        if first > at:
            return f"slots {at}..{first - 1} are in no range"
        at, before = end, worker
    if at < slots:
        return f"slots {at}..{slots - 1} are in no range"
    return f"slots {slots}..{at - 1} do not exist, a step has {slots}" if at > slots else ""


def record_fault(record: StepsCommitted, course: Course | None) -> str:
    """Return what is wrong with one record by itself, in words; empty if nothing is."""
    if record.first < 0 or record.last < record.first:
        return f"steps {record.first}..{record.last} are no range of steps"
    if course is not None and record.slots != course.slots:
        return f"a step has {record.slots} slots here, the run's terms say {course.slots}"
    if course is not None and record.last >= course.steps:
        return f"step {record.last} is beyond the run's last step {course.steps - 1}"
    if record.chains and len(record.chains) != record.last - record.first + 1:
        return f"{len(record.chains)} chains for {record.last - record.first + 1} steps"
    return coverage_fault(record.ranges, record.slots)


@dataclasses.dataclass(frozen=True, slots=True)
class Restore:
    """A cut of the line: who committed `step` or later before `generation` is on a lost line."""

    generation: int
    step: int

    def fences(self, generation: int, step: int) -> bool:
        """Return True if a record of this generation does not count for this step."""
        return generation < self.generation and step >= self.step


@dataclasses.dataclass(frozen=True, slots=True)
class Contradiction:
    """Two records of one step that cannot both be true; `generation` is the older one's."""

    step: int
    generation: int
    text: str


class Line:
    """Committed steps of one run: for each step its chain, generation, owners and the record's sequence."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.course: Course | None = None
        self.finished: JobFinished | None = None
        self.chains, self.generations = array("Q"), array("q")
        self.owners, self.records = array("q"), array("q")
        self.known_owners: list[tuple[tuple[str, int, int], ...]] = []
        self._owner_numbers: dict[tuple[tuple[str, int, int], ...], int] = {}
        self.restores: list[Restore] = []
        self.rollbacks = self.lost_steps = self.computed_again = self.duplicates = 0
        self._stepped = False  # this run itself has committed a step
        self.problems: list[str] = []
        self.contradictions: list[Contradiction] = []

    def commit(self, record: StepsCommitted, seq: int) -> None:
        """Take one record in; what is wrong with it becomes a problem."""
        if self.course is None:
            self.problems.append(f"record {seq} comes before any worker told its terms")
            return
        fault = record_fault(record, self.course)
        if fault:
            steps = f"{record.first}" if record.first == record.last else f"{record.first}..{record.last}"
            self.problems.append(f"record {seq} (step {steps}, generation {record.generation}): {fault}")
            return
        self._grow(record.last + 1)
        owner = self._owner(owners_of(record.ranges))
        news = False
        for step in range(record.first, record.last + 1):
            if any(r.fences(record.generation, step) for r in self.restores):
                continue
            chain = record.chains[step - record.first] if record.chains else 0
            news |= self._put(step, chain, record.generation, owner, seq)
        if news:
            self._stepped = True
            self.computed_again += record.computed_again

    def _put(self, step: int, chain: int, generation: int, owner: int, seq: int) -> bool:
        old_generation, old_chain = self.generations[step], self.chains[step]
        if old_generation == ABSENT:
            self._set(step, chain, generation, owner, seq)
            return True
        same_chain = chain == old_chain or not chain or not old_chain
        if same_chain and owner == self.owners[step]:
            self.duplicates += 1
            self.generations[step] = min(generation, old_generation)
            self.chains[step] = chain or old_chain
            return False
        if chain and chain == old_chain and generation != old_generation:
            if generation > old_generation:
                self._set(step, chain, generation, owner, seq)
            return generation > old_generation
        what = "the same owners but other results" if owner == self.owners[step] else "other owners"
        text = (
            f"step {step} is told twice and differently ({what}): "
            f"{self._name(self.records[step], old_generation, self.owners[step], old_chain)} and "
            f"{self._name(seq, generation, owner, chain)}"
        )
        self.contradictions.append(Contradiction(step, min(generation, old_generation), text))
        if generation > old_generation:  # a restore that is heard later may settle it in favour of the newer one
            self._set(step, chain, generation, owner, seq)
        return False

    def _set(self, step: int, chain: int, generation: int, owner: int, seq: int) -> None:
        self.chains[step], self.generations[step] = chain, generation
        self.owners[step], self.records[step] = owner, seq

    def restore(self, event: CheckpointRestored, seq: int) -> None:
        """Cut the line: what earlier generations committed from `event.step` on is lost."""
        restore = Restore(event.generation, event.step)
        self.restores.append(restore)
        lost = 0
        for step in range(event.step, len(self.generations)):
            if self.generations[step] != ABSENT and restore.fences(self.generations[step], step):
                self.generations[step] = ABSENT
                lost += 1
        self.rollbacks += self._stepped
        self.lost_steps += lost
        self.contradictions = [c for c in self.contradictions if not restore.fences(c.generation, c.step)]
        before = self.chain_before(event.step)
        if before and event.chain and before != event.chain:
            self.problems.append(
                f"restore {seq} takes up checkpoint {event.checkpoint} at step {event.step} with chain "
                f"{event.chain:016x}, but record {self.records[event.step - 1]} left {before:016x} there"
            )

    def chain_before(self, step: int) -> int:
        """Return the chain that the step before `step` left, 0 if it is not known."""
        if not 0 < step <= len(self.generations) or self.generations[step - 1] == ABSENT:
            return 0
        return self.chains[step - 1]

    def inherit(self, earlier: Line, step: int) -> None:
        """Begin with the first `step` steps of an earlier run's line, whose checkpoint this run took up."""
        self.chains, self.generations = earlier.chains[:step], earlier.generations[:step]
        self.owners, self.records = earlier.owners[:step], earlier.records[:step]
        self.known_owners, self._owner_numbers = list(earlier.known_owners), dict(earlier._owner_numbers)

    def _grow(self, size: int) -> None:
        missing = size - len(self.generations)
        if missing > 0:
            self.generations.extend([ABSENT] * missing)
            for column in (self.chains, self.owners, self.records):
                column.extend([0] * missing)

    def _owner(self, owners: tuple[tuple[str, int, int], ...]) -> int:
        number = self._owner_numbers.setdefault(owners, len(self.known_owners))
        if number == len(self.known_owners):
            self.known_owners.append(owners)
        return number

    def _name(self, seq: int, generation: int, owner: int, chain: int) -> str:
        who = ", ".join(f"{w} {first}..{end - 1}" for w, first, end in self.known_owners[owner])
        return f"record {seq} (generation {generation}, {who}, chain {chain:016x})"
