"""Flipped bits in real jobs: found in the same step, named, healed; the weights are those of a calm run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reknit.core.bus import Bus, Received
from reknit.core.events import (
    Alert,
    ChaosAsked,
    CheckpointCommitted,
    CheckpointRestored,
    JobFinished,
    RingBroken,
    StepsCommitted,
    WorkerCaughtUp,
    WorkerDiverged,
    WorkerFailed,
    WorldChanged,
)
from reknit.core.home import read_endpoint
from support.buses import until as soon
from support.launchers import Command, Place

pytestmark = pytest.mark.timeout(300)

STEPS = 400
# Slow until the gate is there, then as fast as it can; at the end a hash of everything that was trained.
SCRIPT = """
import hashlib, pathlib, sys, time
import torch, torch.nn.functional as F
from torch.utils.data import TensorDataset
import reknit

torch.manual_seed(0)
data = TensorDataset(torch.randn(480, 12), torch.randint(0, 4, (480,)))
model = torch.nn.Sequential(
    torch.nn.Linear(12, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
gate = pathlib.Path(sys.argv[1])
with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    for step in ring.steps(data, micro_batch=8, slots=6, epochs=40, seed=0):
        for x, y in step:
            out = model(x)
            if not gate.exists():
                time.sleep(0.004)  # a bit may well flip in the middle of a forward
            step.backward(F.cross_entropy(out, y))
        optimizer.step()
    held = hashlib.sha256()
    for tensor in (*model.state_dict().values(), *(t for s in optimizer.state.values() for t in s.values())):
        held.update(tensor.numpy().tobytes())
    print("trained", held.hexdigest(), flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.clean()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of a run of one process without a launcher."""
    folder = tmp_path_factory.mktemp("calm")
    (folder / "train.py").write_text(SCRIPT)
    env = {k: v for k, v in os.environ.items() if not k.startswith("REKNIT_")} | {"OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "train.py", str(folder)]  # the gate is there
    done = subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout.split()[1]


class Watched:
    """A running job, its events as they come, and faults that are asked for."""

    def __init__(self, place: Place, run: Command, bus: Bus) -> None:
        self.place, self.run, self.bus = place, run, bus
        self.heard: list[Received] = []

    def told(self, kind: type, since: int = 0) -> list[Any]:
        return [r.event for r in self.heard[since:] if isinstance(r.event, kind)]

    async def soon(self, holds: Callable[[], object], what: str) -> None:
        try:
            await soon(lambda: holds() or self.run.process.poll() is not None, what, 60.0)
        except AssertionError:
            raise AssertionError(f"{what}\n{self.run.shown}") from None
        assert holds(), f"{what}: the run is over\n{self.run.shown}"

    def members(self) -> list[str]:
        return [m.worker for m in self.told(WorldChanged)[-1].members]

    def active(self) -> list[str]:
        return [m.worker for m in self.told(WorldChanged)[-1].members if m.role == "active"]

    async def spoil(self, worker: str, **what: Any) -> WorkerDiverged:
        """Flip a bit; returns what was told of it, once the worker has caught up and the run goes on."""
        since = len(self.heard)
        await self.bus.publish("j", ChaosAsked(worker=worker, fault="flip-bit", **what))
        await self.soon(lambda: self.told(WorkerDiverged, since), f"{what} of {worker} is found")
        await self.soon(
            lambda: [e for e in self.told(WorkerCaughtUp, since) if e.worker == worker], f"{worker} has caught up"
        )
        at = len(self.heard)
        await self.soon(lambda: self.told(StepsCommitted, at), "steps go on")
        (told,) = self.told(WorkerDiverged, since)
        return told


async def watch(place: Place, run: Command) -> Watched:
    file = place.home / "jobs" / "j" / "endpoint.json"
    await soon(lambda: read_endpoint(file) or run.process.poll() is not None, "the broker", 60.0)
    endpoint = read_endpoint(file)
    assert endpoint is not None, run.shown
    job = Watched(place, run, await Bus.connect(endpoint, source="test"))
    await job.bus.follow(job.heard.append, job="j")
    await job.soon(lambda: job.told(StepsCommitted), "steps")
    return job


def start(place: Place, workers: int, *flags: str) -> Command:
    script = place.script("train.py", SCRIPT)
    size = ("--nproc-per-node", str(workers), "--allow-chaos")
    return place.start("run", "--job", "j", "--node", "n", *size, *flags, str(script), "gate")


def hashes(run: Command) -> set[str]:
    return {line.split("trained ")[1] for line in run.out if "trained " in line}


# an exponent's lowest bit of the first element: twice or half as much
EXPONENT = 23


def test_bits_of_one_of_three_flip_again_and_again(place: Place, calm: str) -> None:
    run = start(place, 3)

    async def story() -> None:
        job = await watch(place, run)
        try:
            names = job.members()
            first = await job.spoil(names[1])
            assert (first.worker, first.node, first.what) == (names[1], "n", "weights")
            assert first.observer in {names[0], names[2]}
            for turn, what in enumerate(
                [
                    {"target": "weights"},
                    {"target": "moments", "bit": EXPONENT},
                    {"target": "result", "bit": EXPONENT},
                    {"target": "weights", "bit": 0},
                    {"target": "weights", "at_step": 5},
                ]
            ):
                told = await job.spoil(names[turn % 3], **what)
                assert (told.worker, told.what) == (names[turn % 3], "weights")
            raised = [a for a in job.told(Alert) if a.state == "raised"]
            assert {a.subject for a in raised if a.alert == "worker-diverged"} == set(names)
            await job.soon(
                lambda: [a for a in job.told(Alert) if a.alert == "node-diverges" and a.severity == "critical"],
                "the node is suspected",
            )
            assert not job.told(WorkerFailed)
            assert any("diverged" in b.error for b in job.told(RingBroken))
            place.open("gate")
            assert await asyncio.to_thread(run.wait, 120.0) == 0, run.shown
        finally:
            await job.bus.close()

    asyncio.run(story())
    assert hashes(run) == {calm}
    assert place.json("ledger", "verify", "--job", "j")["ok"]


def test_of_two_the_one_that_saw_its_weights_change_is_healed_by_the_other(place: Place, calm: str) -> None:
    """A bit that flips while the other one cannot tell: found by the worker's own two digests, or nobody goes on."""
    run = start(place, 2, "--checkpoint-every-steps", "10")

    async def story() -> None:
        job = await watch(place, run)
        try:
            names = job.members()
            since = len(job.heard)
            await job.bus.publish("j", ChaosAsked(worker=names[1], fault="flip-bit"))
            await job.soon(lambda: job.told(WorkerDiverged, since) or job.told(WorkerFailed, since), "the bit is found")
            if job.told(WorkerDiverged, since):
                (told,) = job.told(WorkerDiverged, since)
                assert (told.worker, told.by) == (names[1], "own")
            else:  # it flipped between the end of the slots and the next step: nothing tells who is right
                assert all("no majority" in e.error for e in job.told(WorkerFailed, since))
                await job.soon(lambda: job.told(CheckpointRestored, since), "the last checkpoint is taken up")
            place.open("gate")
            assert await asyncio.to_thread(run.wait, 120.0) == 0, run.shown
        finally:
            await job.bus.close()

    asyncio.run(story())
    assert hashes(run) == {calm}
    assert place.json("ledger", "verify", "--job", "j")["ok"]


@pytest.mark.slow
def test_of_two_with_other_moments_nobody_can_tell_and_the_run_goes_back(place: Place, calm: str) -> None:
    run = start(place, 2, "--checkpoint-every-steps", "10")

    async def story() -> None:
        job = await watch(place, run)
        try:
            await job.soon(lambda: job.told(CheckpointCommitted), "a checkpoint")
            since = len(job.heard)
            await job.bus.publish(
                "j", ChaosAsked(worker=job.members()[0], fault="flip-bit", target="moments", bit=EXPONENT)
            )
            await job.soon(lambda: len(job.told(WorkerFailed, since)) == 2, "both fail")
            assert all("no majority says which is right" in e.error for e in job.told(WorkerFailed, since))
            await job.soon(lambda: job.told(CheckpointRestored, since), "the last checkpoint is taken up")
            (restored,) = job.told(CheckpointRestored, since)
            assert restored.checkpoint
            assert not job.told(WorkerDiverged)
            place.open("gate")
            assert await asyncio.to_thread(run.wait, 120.0) == 0, run.shown
        finally:
            await job.bus.close()

    asyncio.run(story())
    assert hashes(run) == {calm}
    assert place.json("ledger", "verify", "--job", "j")["ok"]


@pytest.mark.slow
def test_two_and_a_spare_are_three(place: Place, calm: str) -> None:
    run = start(place, 2, "--spares", "1")

    async def story() -> None:
        job = await watch(place, run)
        try:
            await asyncio.to_thread(place.call, "scale", "2", "--job", "j")  # one node: its third worker is the spare
            await job.soon(lambda: len(job.members()) == 3, "the spare is there")
            await job.soon(lambda: job.told(WorkerCaughtUp), "the spare has the state")
            victim = job.active()[0]
            told = await job.spoil(victim, target="moments", bit=EXPONENT)
            assert (told.worker, told.by) == (victim, "majority"), "its weights are only as wrong as its moments"
            place.open("gate")
            assert await asyncio.to_thread(run.wait, 120.0) == 0, run.shown
        finally:
            await job.bus.close()

    asyncio.run(story())
    assert hashes(run) == {calm}


@pytest.mark.slow
def test_workers_do_not_obey_where_chaos_is_not_allowed(place: Place) -> None:
    script = place.script("train.py", SCRIPT)
    run = place.start("run", "--job", "j", "--node", "n", str(script), "gate")
    run.until("loss ")
    refused = place.call("chaos", "flip-bit", "--worker", "n-0", "--job", "j", code=2)
    assert "the workers of job 'j' do not obey" in refused.shown
    assert "--allow-chaos" in refused.shown

    async def story() -> None:
        job = await watch(place, run)
        try:
            await job.bus.publish("j", ChaosAsked(worker="n-0", fault="flip-bit"))  # not through the command
            await asyncio.to_thread(run.until, "refused: this job was not submitted with --allow-chaos")
            place.open("gate")
            assert await asyncio.to_thread(run.wait, 120.0) == 0, run.shown
            assert not job.told(WorkerDiverged)
            assert job.told(JobFinished)[0].outcome == "completed"
        finally:
            await job.bus.close()

    asyncio.run(story())


@pytest.mark.slow
def test_the_command_asks_and_names_who_is_there(place: Place) -> None:
    run = start(place, 1)
    run.until("loss ")
    wrong = place.call("chaos", "flip-bit", "--worker", "n-7", "--job", "j", code=2)
    assert "there are: n-0" in wrong.shown
    wrong = place.call("chaos", "flip-bit", "--worker", "n-0", "--target", "weight", "--job", "j", code=2)
    assert "did you mean 'weights'?" in wrong.shown
    place.call("chaos", "flip-bit", "--worker", "n-0", "--at-step", "100000", "--job", "j")
    place.open("gate")
    assert run.wait(120.0) == 0, run.shown
