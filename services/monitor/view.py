"""What the monitor knows of one job: its status, incidents that are not healed, memory trends, the alert book."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from reknit.core.events import Alert, AnyEvent, AnyPulse, WorkerPulse
from reknit.core.status import Key, Status
from reknit.core.status_fold import hear, see

from .book import Book
from .incidents import Incidents
from .memory import Trend

FRESH = 3.0
"""Seconds for which a heartbeat says what a worker does now."""
DEAF = 2.0
"""Seconds without a single heartbeat of anybody after which the monitor doubts its own hearing."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """One job.

    Attributes:
        status: the fold of log and heartbeats.
        incidents: failures whose worker is not back yet.
        trends: memory of each worker over time; a new incarnation begins a new one.
        book: which findings wait to be raised or cleared.
        listening: monotonic seconds since when inputs are live, None while the log is replayed.
        heard: monotonic seconds of the newest heartbeat of anybody.
        looked: monotonic seconds when the rules were looked at last.
        ahead: the broker's clock, in which some events name a time, less ours.
    """

    status: Status
    incidents: Incidents = dataclasses.field(default_factory=Incidents)
    trends: Mapping[str, Trend] = dataclasses.field(default_factory=dict)
    book: Book = dataclasses.field(default_factory=Book)
    listening: float | None = None
    heard: float = float("-inf")
    looked: float = float("-inf")
    ahead: float = 0.0

    @property
    def job(self) -> str:
        """The job's name."""
        return self.status.job

    @property
    def raised(self) -> Mapping[Key, Alert]:
        """Alerts that are raised, as the log says."""
        return self.status.alerts

    def since_listening(self, now: float) -> float:
        """Return for how many seconds heartbeats could be heard."""
        return now - self.listening if self.listening is not None else 0.0

    def deaf(self, now: float) -> bool:
        """Return True if nobody at all is heard: then silence says nothing about one."""
        return now - self.heard > DEAF

    def fresh(self, now: float) -> list[WorkerPulse]:
        """Return the newest heartbeats of the world's members, of those heard lately."""
        return [
            w.pulse
            for w in self.status.members
            if w.pulse is not None and w.heard is not None and now - w.heard <= FRESH
        ]


def with_event(view: View, event: AnyEvent, now: float, wall: float = 0.0, seq: int = 0) -> View:
    """Take in one event of the log."""
    before = view.status
    status = see(before, event, now, wall, seq)
    incidents = (view.incidents if status.run == before.run else Incidents()).see(event, status)
    gone = {name for name, w in status.workers.items() if name in view.trends and _other(before, name, w.incarnation)}
    trends = {name: trend for name, trend in view.trends.items() if name not in gone} if gone else view.trends
    return dataclasses.replace(view, status=status, incidents=incidents, trends=trends)


def with_pulse(view: View, pulse: AnyPulse, now: float) -> View:
    """Take in one heartbeat."""
    view = dataclasses.replace(view, status=hear(view.status, pulse, now), heard=now)
    if not isinstance(pulse, WorkerPulse) or pulse.worker not in view.status.workers:
        return view
    known = view.trends.get(pulse.worker, Trend())
    trend = known.add(now, pulse.rss)
    return view if trend is known else dataclasses.replace(view, trends={**view.trends, pulse.worker: trend})


def _other(before: Status, name: str, incarnation: int) -> bool:
    known = before.workers.get(name)
    return known is None or known.incarnation != incarnation
