"""What the engine needs from outside: a place for events, spans and ledger records; in memory for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from reknit.core.events import Event, StepsCommitted


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A finished span.

    Attributes:
        name: e.g. `ring.link`.
        seconds_ago, seconds: begin (before now) and duration.
        parent: traceparent, "" for none.
        attributes: plain values.
    """

    name: str
    seconds_ago: float
    seconds: float
    parent: str = ""
    attributes: dict[str, str | int | float | bool] = dataclasses.field(default_factory=dict)


class Outlet(Protocol):
    """Where a session's events go."""

    def post(self, event: Event, *, trace: str = "") -> None:
        """Publish durably, in order, now or when the broker is back."""

    def store(self, record: StepsCommitted, stored: Callable[[], None]) -> None:
        """Publish a ledger record and call back (any thread) once it is on disk."""

    def span(self, span: Span) -> None:
        """Record a finished span."""


class Memory:
    """An outlet that keeps everything in lists: the world of one, and tests."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.records: list[StepsCommitted] = []
        self.spans: list[Span] = []

    def post(self, event: Event, *, trace: str = "") -> None:  # noqa: ARG002 - the port's signature
        """Keep the event."""
        self.events.append(event)

    def store(self, record: StepsCommitted, stored: Callable[[], None]) -> None:
        """Keep the record; it is stored at once."""
        self.records.append(record)
        stored()

    def span(self, span: Span) -> None:
        """Keep the span."""
        self.spans.append(span)


class Nowhere(Memory):
    """An outlet for a world of one that runs for a month: keeps nothing."""

    def post(self, event: Event, *, trace: str = "") -> None:
        """Drop it."""

    def store(self, record: StepsCommitted, stored: Callable[[], None]) -> None:  # noqa: ARG002 - the port's signature
        """Drop it; it counts as stored."""
        stored()

    def span(self, span: Span) -> None:
        """Drop it."""
