"""Newcomers of real jobs: one that computes the same bits, one whose micro-batches are not seeded, one that differs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from reknit.core.bus import Bus, Received
from reknit.core.events import JobFinished, JobInexact, WorkerCaughtUp, WorkerFailed, WorkerRefused, WorldChanged
from reknit.core.home import read_endpoint
from support.buses import until as soon
from support.launchers import Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Slow until the gate is there. What a worker computes may depend on what the second argument says.
SCRIPT = """
import os, pathlib, random, sys, time
import torch
from torch.utils.data import TensorDataset
import reknit

torch.manual_seed(0)
data = TensorDataset(torch.randn(240, 6), torch.randn(240, 1))
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
gate, fault = pathlib.Path(sys.argv[1]), sys.argv[2]
unseeded = random.SystemRandom()
with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    for step in ring.steps(data, micro_batch=4, slots=6, epochs=40, seed=0):
        for x, y in step:
            if fault == "unseeded":
                x = x + 1e-3 * unseeded.random()
            if fault == "machine" and ring.id == "n-2":
                x = x * (1 + 1e-6)
            if not gate.exists():
                time.sleep(0.004)
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
print("trained", flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.clean()


@pytest.mark.parametrize("fault", ["none", "unseeded", "machine"])
def test_a_third_worker_joins(place: Place, fault: str) -> None:
    script = place.script("train.py", SCRIPT)
    run = place.start(
        "run", "--job", "j", "--node", "n", "--nproc-per-node", "2", "--spares", "1", str(script), "gate", fault
    )
    heard: list[Received] = []

    def told(kind: type) -> list:
        return [r.event for r in heard if isinstance(r.event, kind)]

    async def story() -> None:
        file = place.home / "jobs" / "j" / "endpoint.json"
        await soon(lambda: read_endpoint(file) or run.process.poll() is not None, "the broker", 60.0)
        bus = await Bus.connect(read_endpoint(file), source="test")
        try:
            await bus.follow(heard.append, job="j")
            await soon(lambda: told(WorldChanged), "a world", 60.0)
            await asyncio.to_thread(run.until, "loss ")
            await asyncio.to_thread(place.call, "scale", "2", "--job", "j")
            if fault == "machine":
                await soon(lambda: told(WorkerRefused), "it is refused", 60.0)
            else:
                await soon(lambda: told(WorkerCaughtUp), "it has caught up", 60.0)
            if fault == "unseeded":
                await soon(lambda: told(JobInexact), "it is said that the run is not exact", 60.0)
            place.open("gate")
            await asyncio.to_thread(run.wait, 120.0)
        finally:
            await bus.close()

    asyncio.run(story())
    assert told(JobFinished)[0].outcome == "completed", run.shown
    assert not told(WorkerFailed)
    refused, inexact = told(WorkerRefused), told(JobInexact)
    if fault == "none":
        assert (refused, inexact) == ([], [])
    elif fault == "unseeded":
        assert refused == []
        assert {e.worker for e in inexact} == {"n-2"}
        assert "another gradient each time" in inexact[0].difference
        assert place.json("status", "--job", "j")["inexact"] == {"n-2": inexact[0].difference}
    else:
        assert {e.worker for e in refused} == {"n-2"}
        assert "this worker computes other bits than the job's" in refused[0].reason
        assert len(told(WorkerRefused)) == 1, "it is not tried again"
