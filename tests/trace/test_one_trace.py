"""A worker is killed in a real run: one trace tells it all, from the first evidence to the first commit after."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from reknit.core.bus import Bus, Received
from reknit.core.events import RingRecovered, StepsCommitted, WorldChanged
from reknit.core.home import read_endpoint
from support.agents import until
from support.buses import until as soon
from support.collector import Collector, Span
from support.launchers import Command, Place

SCRIPT = """
import time
import torch
from torch.utils.data import TensorDataset
import reknit

torch.manual_seed(0)
data = TensorDataset(torch.randn(2400, 8), torch.randn(2400, 1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    for step in ring.steps(data, micro_batch=4, slots=6, epochs=1, seed=0):
        for x, y in step:
            time.sleep(0.01)  # most of the time a kill then meets a slot in work
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
"""
EVIDENCE = {"ring.broken", "agent.worker_dying", "agent.worker_exited", "membership.dial"}
STORY = {"membership.verdict", "shards.plan", "ring.link", "ring.roll_call", "step.recompute", "ring.first_commit"}


def test_one_trace_from_the_first_evidence_to_the_first_commit(place: Place, traces: Collector) -> None:
    script = place.script("train.py", SCRIPT)
    env = place.env | {"OTEL_EXPORTER_OTLP_ENDPOINT": traces.url, "REKNIT_THREADS": "1"}
    run = place.start("run", "--job", "traced", "--nproc-per-node", "3", str(script), env=env)
    victim, changed, recovered = asyncio.run(kill_one(place, run))
    assert run.wait(60.0) == 0, run.shown
    assert not traces.refused

    everything = traces.spans
    trace = changed.trace[3:35]
    spans = [span for span in everything if span.trace == trace]
    told = "\n".join(sorted(f"{s.service}/{s.pid} {s.name} {s.attributes}" for s in spans))
    assert {s.name for s in spans} >= STORY, told

    (root,) = (s for s in spans if not s.parent)
    assert root.name in EVIDENCE, told
    (world,) = (s for s in spans if s.name == "membership.verdict" and s.attributes["reknit.kind"] == "world.changed")
    assert f"/{changed.event.generation}/" in world.attributes["reknit.id"]

    # through every process that has a part in it; the dead one has none
    assert {s.service for s in spans} >= {"reknit-membership", "reknit-shards", "reknit-worker"}, told
    workers = {s.attributes["worker"] for s in spans if s.name == "ring.first_commit"}
    assert len(workers) == 2
    assert victim not in workers
    for name in ("ring.link", "ring.roll_call"):
        assert {s.attributes["worker"] for s in spans if s.name == name} == workers, told
    again = [s for s in spans if s.name == "step.recompute"]
    assert {s.attributes["step"] for s in again} == {recovered.step}
    assert len({s.attributes["slot"] for s in again}) == recovered.computed_again

    # a cause begins before what follows from it
    ids = {s.span: s for s in spans}
    assert min(spans, key=lambda s: s.start) is root
    assert ancestors(world, ids)[-1] is root or world is root
    for span in spans:
        if span.name in STORY - {"membership.verdict"}:
            assert world in ancestors(span, ids), f"{span.name} does not follow from the world\n{told}"
            assert span.start >= world.start


def test_no_span_is_an_orphan_in_a_calm_run(place: Place, traces: Collector) -> None:
    script = place.script("train.py", SCRIPT.replace("2400", "240"))
    env = place.env | {"OTEL_EXPORTER_OTLP_ENDPOINT": traces.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    place.call("run", "--job", "calm", "--nproc-per-node", "2", str(script), env=env)
    spans = traces.spans
    assert traces.encodings == {"gzip"}
    assert not traces.refused
    known = {(s.trace, s.span) for s in spans}
    orphans = [f"{s.service} {s.name}" for s in spans if s.parent and (s.trace, s.parent) not in known]
    assert not orphans
    begins = [s for s in spans if s.name == "worker.registered"]
    assert len(begins) == 2
    assert any(
        {"membership.verdict", "ring.roll_call"} <= {s.name for s in spans if s.trace == b.trace} for b in begins
    )


@pytest.mark.slow
def test_a_collector_that_is_away_does_not_hold_up_the_run(place: Place) -> None:
    script = place.script("train.py", SCRIPT.replace("2400", "48"))
    env = place.env | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    run = place.call("run", "--job", "alone", str(script), env=env)
    assert "completed" in run.shown
    assert "Traceback" not in run.shown


def test_spans_of_a_single_process_arrive(traces: Collector) -> None:
    code = (
        "from reknit.core import telemetry\n"
        "telemetry.setup('one')\n"
        "with telemetry.tracer().start_as_current_span('outer') as outer:\n"
        "    inside = telemetry.inject()\n"
        "with telemetry.tracer().start_as_current_span('inner', telemetry.context_from(inside)): pass\n"
        "telemetry.flush()\n"
    )
    env = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": traces.url}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    outer, inner = until(lambda: sorted(traces.spans, key=lambda s: s.start)[:2], "both spans")
    assert (outer.name, inner.name, inner.parent) == ("outer", "inner", outer.span)
    assert outer.service == "one"


# -------------------------------------------------------------------------------------------------------------- parts


def ancestors(span: Span, ids: dict[str, Span]) -> list[Span]:
    """The span's parent, its parent, …; a parent that did not arrive fails the test."""
    found = []
    while span.parent:
        assert span.parent in ids, f"the parent of {span.name} did not arrive"
        span = ids[span.parent]
        found.append(span)
    return found


async def kill_one(place: Place, run: Command) -> tuple[str, Received, RingRecovered]:
    """Kill the ring's middle worker in mid step; again, should it have held no slot at that moment."""
    file = place.home / "jobs" / "traced" / "endpoint.json"
    await soon(lambda: read_endpoint(file) or run.process.poll() is not None, "the broker")
    endpoint = read_endpoint(file)
    assert endpoint is not None, run.shown
    heard: list[Received] = []
    bus = await Bus.connect(endpoint, source="test")
    try:
        await bus.follow(heard.append, job="traced")
        await soon(lambda: of(heard, StepsCommitted), f"steps\n{run.shown}")
        while True:
            world = of(heard, WorldChanged)[-1].event
            assert isinstance(world, WorldChanged)
            victim = world.members[1]
            os.kill(victim.pid, signal.SIGKILL)
            since = len(heard)
            await soon(lambda n=since: of(heard[n:], RingRecovered), f"a step after the kill\n{run.shown}")
            recovered = of(heard[since:], RingRecovered)[0].event
            assert isinstance(recovered, RingRecovered)
            if recovered.computed_again:
                break
            count = len(world.members)
            await soon(lambda n=count: len(of(heard, WorldChanged)[-1].event.members) == n, "the replacement")
        changed = next(r for r in of(heard[since:], WorldChanged) if victim.worker in r.event.removed)
        return victim.worker, changed, recovered
    finally:
        await bus.close()


def of(heard: list[Received], kind: type) -> list[Received]:
    return [r for r in heard if isinstance(r.event, kind)]
