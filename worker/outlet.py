"""The session's way out: events, ledger records and spans through the worker's bus thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from opentelemetry import trace as otel

from reknit.core import telemetry
from reknit.core.bus_thread import BusThread
from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.events import Event, RingBroken, StepsCommitted, WorkerRegistered, kind_of

from .ports import Span

_DEADLINE = 30.0


class BusOutlet:
    """Publishes for one worker; ledger records through a thread of their own, which waits for the broker's word."""

    def __init__(self, bus: BusThread, job: str, worker: str) -> None:
        self._bus, self._job, self._worker = bus, job, worker
        self._records: queue.SimpleQueue[tuple[StepsCommitted, Callable[[], None]] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._store, name="ledger", daemon=True)
        self._thread.start()

    def post(self, event: Event, *, trace: str = "") -> None:
        """Publish through the outbox; what may be the first evidence of a change opens a trace."""
        if isinstance(event, RingBroken | WorkerRegistered):
            attributes = {"worker": event.worker} | ({"peer": event.peer} if isinstance(event, RingBroken) else {})
            with telemetry.tracer().start_as_current_span(kind_of(event), attributes=attributes):
                self._bus.post(self._job, event, trace=telemetry.inject())
            return
        self._bus.post(self._job, event, trace=trace or None)

    def store(self, record: StepsCommitted, stored: Callable[[], None]) -> None:
        """Publish a ledger record; `stored` is called on the ledger thread once it is on disk."""
        self._records.put((record, stored))

    def span(self, span: Span) -> None:
        """Record a span that is over."""
        now = time.time_ns()
        began = now - int(span.seconds_ago * 1e9)
        context = telemetry.context_from(span.parent) if span.parent else None
        made = telemetry.tracer().start_span(
            span.name,
            context=context,
            start_time=began,
            kind=otel.SpanKind.INTERNAL,
            attributes={"worker": self._worker, **span.attributes},
        )
        made.end(began + int(span.seconds * 1e9))

    def close(self) -> None:
        """End the ledger thread; what it has not stored, another worker stores, or nobody was to know."""
        self._closed = True
        self._records.put(None)
        self._thread.join(2.0)

    def _store(self) -> None:
        while (item := self._records.get()) is not None:
            record, stored = item
            name = f"ledger/{record.run}/{record.first}-{record.last}/{record.generation}/{self._worker}"
            while not self._closed:
                try:
                    self._bus.publish(self._job, record, id=name, deadline=_DEADLINE)
                except ControlPlaneUnreachable:
                    continue
                stored()
                break
