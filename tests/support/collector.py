"""An OTLP/HTTP collector for tests: takes what exporters send, as a real one would, and keeps the spans."""

from __future__ import annotations

import dataclasses
import gzip
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """One span as it arrived; ids in hex, times in nanoseconds since the epoch."""

    trace: str
    span: str
    parent: str
    name: str
    service: str
    pid: int
    start: int
    end: int
    attributes: dict[str, Any]


class Collector:
    """What arrived at one address.

    Attributes:
        url: for `OTEL_EXPORTER_OTLP_ENDPOINT`.
        encodings: content encodings seen, "" for none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self.encodings: set[str] = set()
        self.refused: list[str] = []
        collector = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector._take(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _take(self, door: BaseHTTPRequestHandler) -> None:
        body = door.rfile.read(int(door.headers["Content-Length"]))
        encoding = door.headers.get("Content-Encoding", "")
        kind = door.headers.get("Content-Type", "")
        answer = b""
        try:
            assert door.path == "/v1/traces", door.path
            assert kind == "application/x-protobuf", kind
            spans = _spans_of(gzip.decompress(body) if encoding == "gzip" else body)
        except Exception as error:  # noqa: BLE001 - told to the test, and to the exporter as the standard says
            with self._lock:
                self.refused.append(f"{type(error).__name__}: {error}")
            door.send_response(400)
        else:
            with self._lock:
                self._spans += spans
                self.encodings.add(encoding)
            answer = ExportTraceServiceResponse().SerializeToString()
            door.send_response(200)
            door.send_header("Content-Type", "application/x-protobuf")
        door.send_header("Content-Length", str(len(answer)))
        door.end_headers()
        door.wfile.write(answer)

    @property
    def spans(self) -> list[Span]:
        """All spans so far."""
        with self._lock:
            return list(self._spans)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector, closed at the end."""
    one = Collector()
    try:
        yield one
    finally:
        one.close()


def _spans_of(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    found = []
    for group in request.resource_spans:
        resource = _plain(group.resource.attributes)
        found += [
            Span(
                trace=span.trace_id.hex(),
                span=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                name=span.name,
                service=resource.get("service.name", ""),
                pid=resource.get("process.pid", 0),
                start=span.start_time_unix_nano,
                end=span.end_time_unix_nano,
                attributes=_plain(span.attributes),
            )
            for scope in group.scope_spans
            for span in scope.spans
        ]
    return found


def _plain(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}
