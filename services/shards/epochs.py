"""Which epochs are complete: committed steps as a few spans, cut when a run takes up a checkpoint.

The same rules as `core.line`, kept in a value that costs a span a generation instead of an entry a step.
"""

from __future__ import annotations

import dataclasses

from reknit.core.events import CheckpointRestored, EpochFinished, StepsCommitted
from reknit.core.line import record_fault
from reknit.core.order import Course

Span = tuple[int, int, int]
"""(first step, end, generation)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Committed:
    """Committed steps of the run's final line, of epochs not yet announced.

    Attributes:
        run: whose line this is; records of another run begin a new one.
        spans: disjoint, sorted.
        cuts: (generation, step) of each restore.
        announced: epochs that are on the log as finished.
    """

    run: str = ""
    spans: tuple[Span, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    announced: frozenset[int] = frozenset()

    def commit(self, record: StepsCommitted, course: Course) -> Committed:
        """Add a record; one that is wrong in itself counts for nothing."""
        if record_fault(record, course):
            return self
        line = self if record.run == self.run else Committed(run=record.run)
        end = min([record.last + 1, *(step for generation, step in line.cuts if record.generation < generation)])
        fresh = _without(record.first, end, line.spans)
        added = tuple((first, stop, record.generation) for first, stop in fresh)
        return dataclasses.replace(line, spans=_joined(line.spans + added))

    def restore(self, event: CheckpointRestored) -> Committed:
        """Cut the line; a new run that takes up an older run's checkpoint goes on with that run's line."""
        line = self
        if event.run != self.run:
            line = Committed(run=event.run, spans=self.spans if event.step else ())
        spans = tuple(
            (first, min(end, event.step) if generation < event.generation else end, generation)
            for first, end, generation in line.spans
        )
        kept = tuple(span for span in spans if span[0] < span[1])
        return dataclasses.replace(line, spans=kept, cuts=(*line.cuts, (event.generation, event.step)))

    def announce(self, event: EpochFinished, course: Course) -> Committed:
        """Note that an epoch is on the log as finished, and forget its steps."""
        if event.run != self.run:
            return self
        first = event.epoch * course.steps_an_epoch
        last = first + course.steps_an_epoch
        pieces = [
            piece
            for start, end, generation in self.spans
            for piece in ((start, min(end, first), generation), (max(start, last), end, generation))
            if piece[0] < piece[1]
        ]
        return dataclasses.replace(self, spans=tuple(pieces), announced=self.announced | {event.epoch})

    def complete(self, course: Course) -> tuple[int, ...]:
        """Return the epochs whose steps are all there and that are not announced."""
        size = course.steps_an_epoch
        covered = _cover(self.spans)
        candidates = {e for first, end in covered for e in range(-(-first // size), end // size)}
        return tuple(sorted(candidates - self.announced))


def _without(first: int, end: int, spans: tuple[Span, ...]) -> list[tuple[int, int]]:
    """Return what of [first, end) is in none of the spans."""
    rest = []
    for start, stop, _ in spans:
        if first < min(start, end):
            rest.append((first, min(start, end)))
        first = max(first, stop)
    return [*rest, (first, end)] if first < end else rest


def _joined(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Sort disjoint spans and join those that touch and are of one generation."""
    out: list[Span] = []
    for first, end, generation in sorted(spans):
        if out and out[-1][1] == first and out[-1][2] == generation:
            out[-1] = (out[-1][0], end, generation)
        else:
            out.append((first, end, generation))
    return tuple(out)


def _cover(spans: tuple[Span, ...]) -> list[tuple[int, int]]:
    """Return the spans joined whatever their generation."""
    out: list[tuple[int, int]] = []
    for first, end, _ in spans:
        if out and out[-1][1] == first:
            out[-1] = (out[-1][0], end)
        else:
            out.append((first, end))
    return out
