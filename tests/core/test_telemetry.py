"""Traces: traceparent in and out, a file of spans, a collector over HTTP."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from reknit.core import telemetry

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

_SPANS = """
import os, signal, sys
from reknit.core import telemetry
telemetry.setup("reknit-test")
telemetry.setup("reknit-other")
with telemetry.tracer().start_as_current_span("outer", context=telemetry.context_from(sys.argv[1]),
                                              attributes={"reknit.job": "j"}) as outer:
    outer.add_event("noticed", {"n": 1})
    with telemetry.tracer().start_as_current_span("inner"):
        pass
    print(telemetry.inject(), flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
telemetry.flush()
"""


def run(tmp: Path, how: str = "end", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _SPANS, PARENT, how],
        env={"PATH": "/usr/bin:/bin", **env},
        cwd=tmp,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_setup_it_does_nothing() -> None:
    with telemetry.tracer().start_as_current_span("x"):
        assert telemetry.inject() == ""
    telemetry.flush()


@pytest.mark.parametrize(
    "bad",
    ["", "x", PARENT[:-1], PARENT + "0", PARENT.upper(), PARENT + "\n", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"],
)
def test_a_traceparent_that_is_none_is_no_parent(bad: str) -> None:
    assert not trace.get_current_span(telemetry.context_from(bad)).get_span_context().is_valid


def test_a_traceparent_goes_in_and_out_unchanged() -> None:
    with trace.use_span(trace.get_current_span(telemetry.context_from(PARENT))):
        assert telemetry.inject() == PARENT


@pytest.mark.parametrize("how", ["end", "kill"])
def test_spans_are_in_the_file_also_after_a_kill(tmp_path: Path, how: str) -> None:
    done = run(tmp_path, how, REKNIT_TRACE_DIR=str(tmp_path / "traces"))
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    (file,) = (tmp_path / "traces").iterdir()
    assert file.name.startswith("reknit-test-")
    inner, outer = (json.loads(line) for line in file.read_text().splitlines())
    assert (inner["name"], outer["name"]) == ("inner", "outer")
    assert outer["trace"] == inner["trace"] == PARENT.split("-")[1]
    assert outer["parent"] == PARENT.split("-")[2]
    assert inner["parent"] == outer["span"]
    assert done.stdout.strip() == f"00-{outer['trace']}-{outer['span']}-01"
    assert outer["attributes"] == {"reknit.job": "j"}
    assert outer["events"][0]["name"] == "noticed"
    assert outer["service"] == "reknit-test"
    assert 0 <= outer["start"] <= inner["start"] <= inner["end"] <= outer["end"]


def test_a_trace_directory_that_cannot_be_is_said_and_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path, REKNIT_TRACE_DIR=str(tmp_path / "file" / "x"))
    assert done.returncode == 0
    assert "no trace file" in done.stderr


def test_spans_reach_a_collector(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        done = run(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
        assert done.returncode == 0, done.stderr
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    spans, services = [], set()
    for body in bodies:
        import gzip

        raw = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
            services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            spans += [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(spans) == ["inner", "outer"]
    assert services == {"reknit-test"}


def test_a_collector_that_is_away_does_not_hold_up_the_end(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 0
    assert time.monotonic() - began < 30.0


_FORK = """
import os
from opentelemetry import trace
from reknit.core import telemetry
telemetry.setup("reknit-parent")
if os.fork() == 0:
    telemetry.setup("reknit-child")
    with telemetry.tracer().start_as_current_span("child"):
        pass
    os._exit(0)
os.wait()
with telemetry.tracer().start_as_current_span("parent"):
    pass
print(type(trace.get_tracer_provider()).__name__)
"""


def test_a_fork_has_a_file_of_its_own_and_the_scripts_provider_is_left_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK],
        env={"PATH": "/usr/bin:/bin", "REKNIT_TRACE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    names = {json.loads(file.read_text())["name"]: file.name for file in tmp_path.iterdir()}
    assert set(names) == {"parent", "child"}
    assert names["child"].startswith("reknit-child-")
    assert done.stdout.strip() == "ProxyTracerProvider"
