"""Failures that count until the worker is back: a new incarnation alone heals nothing, taking part again does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from reknit.core.events import AnyEvent, JobFinished, WorkerExited, WorkerFailed
from reknit.core.status import Status

_BACK = ("active", "spare")


@dataclasses.dataclass(frozen=True, slots=True)
class Incidents:
    """Worker -> its newest failure that is not healed, by kind."""

    failed: Mapping[str, WorkerFailed] = dataclasses.field(default_factory=dict)
    exited: Mapping[str, WorkerExited] = dataclasses.field(default_factory=dict)

    def see(self, event: AnyEvent, status: Status) -> Incidents:
        """Take in one event, with the status after it."""
        match event:
            case WorkerFailed():
                return dataclasses.replace(self, failed={**self.failed, event.worker: event})
            case WorkerExited() if not event.expected:
                return dataclasses.replace(self, exited={**self.exited, event.worker: event})
            case JobFinished(outcome="completed" | "stopped"):
                return Incidents()
            case _:
                return self._healed(status)

    def _healed(self, status: Status) -> Incidents:
        if not self.failed and not self.exited:
            return self
        failed = {name: e for name, e in self.failed.items() if not _is_back(status, name, e.incarnation)}
        exited = {name: e for name, e in self.exited.items() if not _is_back(status, name, e.incarnation)}
        same = len(failed) == len(self.failed) and len(exited) == len(self.exited)
        return self if same else Incidents(failed, exited)


def _is_back(status: Status, name: str, incarnation: int) -> bool:
    worker = status.workers.get(name)
    return worker is not None and worker.incarnation > incarnation and worker.state in _BACK
