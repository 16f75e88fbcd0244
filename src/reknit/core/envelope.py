"""How an event stands in a stored message: its subject, its headers after CloudEvents, its body; and back."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from reknit.core import telemetry, wire
from reknit.core.errors import UsageError
from reknit.core.events import AREAS, AnyEvent, Event, kind_of
from reknit.core.journal import MSG_ID
from reknit.core.outbox import Letter
from reknit.core.stored import Stored
from reknit.core.subjects import job_and_area, subject_of, valid_name


@dataclass(frozen=True, slots=True)
class Received:
    """One stored event.

    Attributes:
        event: what was said.
        job: of which job.
        seq: place in the log; one order for all jobs.
        id: the event's id, unique among events of its kind in its job.
        source: who said it.
        time: when, seconds since the epoch by the speaker's clock: for people, never for decisions.
        stored: when the broker stored it, seconds since the epoch by its clock: the same for all who read the log.
        trace: traceparent of what it belongs to, or "".
    """

    event: AnyEvent
    job: str
    seq: int
    id: str
    source: str
    time: float
    trace: str
    stored: float = 0.0


def sealed(job: str, event: Event, *, source: str, id: str | None, trace: str | None) -> Letter:  # noqa: A002
    """Return an event as it is sent.

    Args:
        job: whose event.
        event: what to say.
        source: who says it.
        id: of the event; None: a new one.
        trace: traceparent it belongs to; None: the current span's.

    Raises:
        UsageError: the job's name cannot be one.
    """
    subject = subject_of(valid_name(job, "job"), event)
    name = id or uuid.uuid4().hex
    headers = {
        # The broker compares ids over the whole stream: without the subject two jobs, or two kinds of events, with
        # one id would swallow each other's.
        MSG_ID: f"{subject}/{name}",
        "ce-id": name,
        "ce-source": source,
        "ce-type": kind_of(event),
        "ce-time": datetime.now(UTC).isoformat(),
        "ce-specversion": "1.0",
    }
    parent = telemetry.inject() if trace is None else trace
    if parent:
        headers["traceparent"] = parent
    return Letter(subject, wire.deflate(wire.encode(event)), headers)


def opened(stored: Stored) -> Received:
    """Return the event of a stored message.

    Raises:
        WireError: it does not decode.
        UsageError: its subject is no event's, or that of another kind.
    """
    job, area = job_and_area(stored.subject)
    event: AnyEvent = wire.decode(wire.inflate(stored.data), AREAS.get(area, AnyEvent))
    if stored.subject != subject_of(job, event):
        raise UsageError(f"a {kind_of(event)} does not belong there")
    head = stored.headers
    return Received(
        event=event,
        job=job,
        seq=stored.seq,
        id=head.get("ce-id") or f"seq-{stored.seq}",
        source=head.get("ce-source", ""),
        time=_seconds(head.get("ce-time", "")),
        trace=head.get("traceparent", ""),
        stored=stored.time,
    )


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
