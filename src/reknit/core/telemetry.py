"""Traces: one trace for each change of the world, through every process that has a part in it.

Used like this: `telemetry.setup("reknit-worker")` once a process (after a fork, not before), then
`with telemetry.tracer().start_as_current_span("roll_call", context=telemetry.context_from(traceparent)): …`.
`inject()` gives the traceparent to send along. Without `setup` all of it does nothing and costs next to nothing.

Spans go to a file of JSON lines when `REKNIT_TRACE_DIR` is set (one file a process, one line a span, written when the
span ends, so that it is there even if the process is killed a moment later), and to a collector by OTLP over HTTP when
`OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context

from reknit.core import log

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

TRACE_DIR = "REKNIT_TRACE_DIR"
_OTLP = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_provider: TracerProvider | None = None
_owner = 0  # pid of the process that made it: a fork must not write into its parent's file
_log = log.get("telemetry")


def setup(service_name: str) -> None:
    """Begin to record spans of this process, if the environment asks for it; a second call changes nothing."""
    wanted_dir = os.environ.get(TRACE_DIR, "")
    wanted_otlp = any(os.environ.get(name) for name in _OTLP)
    if not (wanted_dir or wanted_otlp):
        return
    global _provider, _owner
    if _provider is not None and _owner == os.getpid():
        return
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - 100 ms that only those pay who record
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    provider = TracerProvider(resource=Resource.create({"service.name": service_name, "process.pid": os.getpid()}))
    if wanted_dir:
        _add_file(provider, Path(wanted_dir), service_name)
    if wanted_otlp:
        _add_otlp(provider)
    # Not the global one: that belongs to the user's script, which runs in the same process as a worker.
    _provider, _owner = provider, os.getpid()


def tracer() -> trace.Tracer:
    """Return the tracer of this project; a no-op one before `setup`."""
    return _provider.get_tracer("reknit") if _provider is not None else trace.NoOpTracer()


def inject() -> str:
    """Return the traceparent of the current span, "" if there is none."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return ""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"


def context_from(traceparent: str) -> Context:
    """Return a context whose current span is the remote one of a traceparent; an empty context if it is not valid."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if not found:
        return Context()
    span = trace.SpanContext(
        trace_id=int(found[1], 16),
        span_id=int(found[2], 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(found[3], 16)),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(span), Context())


def flush(timeout: float = 2.0) -> None:
    """Send what is not sent yet to the collector; files have everything already."""
    if _provider is not None:
        _provider.force_flush(int(timeout * 1000))


def _add_file(provider: TracerProvider, directory: Path, service_name: str) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult  # noqa: PLC0415 - see setup

    class FileExporter(SpanExporter):
        """Appends one JSON line a span, in one write."""

        def __init__(self, path: Path) -> None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            try:
                os.write(self._file, "".join(json.dumps(_plain(span, service_name)) + "\n" for span in spans).encode())
            except OSError as error:
                _log.warning("span not written", reason=str(error))
                return SpanExportResult.FAILURE
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            os.close(self._file)

    try:
        directory.mkdir(parents=True, exist_ok=True)
        exporter = FileExporter(directory / f"{service_name}-{os.getpid()}.jsonl")
    except OSError as error:
        _log.warning("no trace file", directory=str(directory), reason=str(error))
        return
    provider.add_span_processor(SimpleSpanProcessor(exporter))


def _add_otlp(provider: TracerProvider) -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - see setup
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    # Short: a collector that is away must not hold up the end of a process.
    exporter = OTLPSpanExporter(timeout=2)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500, export_timeout_millis=2000))


def _plain(span: ReadableSpan, service_name: str) -> dict[str, object]:
    """One span as plain values; times are nanoseconds since the epoch."""
    context = span.get_span_context()
    return {
        "name": span.name,
        "service": service_name,
        "pid": os.getpid(),
        "trace": f"{context.trace_id:032x}" if context else "",
        "span": f"{context.span_id:016x}" if context else "",
        "parent": f"{span.parent.span_id:016x}" if span.parent else "",
        "start": span.start_time,
        "end": span.end_time,
        "attributes": dict(span.attributes or {}),
        "events": [
            {"name": event.name, "time": event.timestamp, "attributes": dict(event.attributes or {})}
            for event in span.events
        ],
        "status": span.status.status_code.name.lower(),
        "reason": span.status.description or "",
    }
