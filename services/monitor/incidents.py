"""Failures that count until the worker is back: a new incarnation alone heals nothing, taking part again does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from reknit.core.events import (
    AnyEvent,
    CheckpointRestored,
    EvaluationDiffers,
    JobFinished,
    StepNotFinite,
    StepsCommitted,
    WorkerCaughtUp,
    WorkerDiverged,
    WorkerExited,
    WorkerFailed,
)
from reknit.core.status import Status

_BACK = ("active", "spare")


@dataclasses.dataclass(frozen=True, slots=True)
class Incidents:
    """Worker -> its newest failure that is not healed, by kind; node -> all divergences of its workers.

    Attributes:
        not_finite: first and newest step, of those in a row, of which a slot was not finite.
        differed: newest evaluation in which a worker got other values than the one before it.
    """

    failed: Mapping[str, WorkerFailed] = dataclasses.field(default_factory=dict)
    exited: Mapping[str, WorkerExited] = dataclasses.field(default_factory=dict)
    diverged: Mapping[str, WorkerDiverged] = dataclasses.field(default_factory=dict)
    nodes_diverged: Mapping[str, tuple[WorkerDiverged, ...]] = dataclasses.field(default_factory=dict)
    not_finite: tuple[StepNotFinite, StepNotFinite] | None = None
    differed: EvaluationDiffers | None = None

    def see(self, event: AnyEvent, status: Status) -> Incidents:  # noqa: PLR0911 - a table
        """Take in one event, with the status after it."""
        match event:
            case WorkerFailed():
                return dataclasses.replace(self, failed={**self.failed, event.worker: event})
            case WorkerExited() if not event.expected:
                return dataclasses.replace(self, exited={**self.exited, event.worker: event})
            case WorkerDiverged():
                events = (*self.nodes_diverged.get(event.node, ()), event)
                return dataclasses.replace(
                    self,
                    diverged={**self.diverged, event.worker: event},
                    nodes_diverged={**self.nodes_diverged, event.node: events},
                )
            case StepNotFinite() if event.run == status.run:
                first = self.not_finite[0] if self.not_finite is not None else event
                return dataclasses.replace(self, not_finite=(first, event))
            case EvaluationDiffers() if event.run == status.run:
                return dataclasses.replace(self, differed=event)
            case StepsCommitted() | CheckpointRestored() if self.not_finite is not None:
                return self._finite_again(event, status)
            case JobFinished(outcome="completed" | "stopped"):
                return Incidents()
            case WorkerCaughtUp() if event.worker in self.diverged:
                diverged = {name: e for name, e in self.diverged.items() if name != event.worker}
                return dataclasses.replace(self, diverged=diverged)
            case _:
                return self._healed(status)

    def _finite_again(self, event: StepsCommitted | CheckpointRestored, status: Status) -> Incidents:
        assert self.not_finite is not None
        older = isinstance(event, StepsCommitted) and event.last <= self.not_finite[1].step
        if older or event.run != status.run or status.not_finite >= 0:
            return self
        return dataclasses.replace(self, not_finite=None)

    def _healed(self, status: Status) -> Incidents:
        if not self.failed and not self.exited and not self.diverged:
            return self
        failed = {name: e for name, e in self.failed.items() if not _is_back(status, name, e.incarnation)}
        exited = {name: e for name, e in self.exited.items() if not _is_back(status, name, e.incarnation)}
        # another process has other memory, and received its state from the others
        diverged = {name: e for name, e in self.diverged.items() if not _is_back(status, name, e.incarnation)}
        new, old = (failed, exited, diverged), (self.failed, self.exited, self.diverged)
        if [len(m) for m in new] == [len(m) for m in old]:
            return self
        return dataclasses.replace(self, failed=failed, exited=exited, diverged=diverged)


def _is_back(status: Status, name: str, incarnation: int) -> bool:
    worker = status.workers.get(name)
    return worker is not None and worker.incarnation > incarnation and worker.state in _BACK
