"""Whole runs with overlap forced on: real launchers, services and workers; the same weights as without a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.launchers import Command, Place

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import os
import signal
import sys

import torch
import xxhash
from torch import nn
from torch.utils.data import TensorDataset

import reknit
from reknit.worker import live

what = sys.argv[1]
torch.set_num_threads(1)
torch.manual_seed(0)
W = 256
data = TensorDataset(torch.randn(390, W), torch.randint(10, (390,)))
layers = [nn.Linear(W, W), nn.BatchNorm1d(W), nn.ReLU(), nn.Dropout(0.2)]
for _ in range(4):
    layers += [nn.Linear(W, W), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(W, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def die(_gradient):
    os.kill(os.getpid(), signal.SIGKILL)


with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    me = live.current()
    for step in ring.steps(data, micro_batch=8, slots=4, epochs=2, seed=0):
        for x, y in step:
            hidden = model[:6](x)
            if what == "dies" and ring.id == "n-1" and me.context.incarnation == 1 and step.index == 14:
                hidden.register_hook(die)  # in mid-backward: pieces of this slot are on their way
            step.backward(nn.functional.cross_entropy(model[6:](hidden), y))
            if what == "meddles" and step.index == 16:
                model[-1].weight.grad.data.mul_(0.5)  # the first to be ready, and no version counter tells
        optimizer.step()
    early = me.running._arrivals.early_slots
state = xxhash.xxh3_64()
for tensor in model.state_dict().values():
    state.update(tensor.numpy().tobytes())
print(f"end {ring.id} {state.hexdigest()} early={early}", flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.clean()


def ends(said: str) -> dict[str, tuple[str, int]]:
    """Worker -> digest of its weights, slots that went early."""
    words = [line.split()[-4:] for line in said.splitlines() if "end " in line and "early=" in line]
    return {name: (digest, int(early.removeprefix("early="))) for _, name, digest, early in words}


def alone(place: Place, script: Path, what: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), what], cwd=place.folder, env=env, capture_output=True, text=True, check=True
    )
    ((digest, early),) = ends(done.stdout).values()
    assert early == 0, "nobody to share with"
    return digest


def together(place: Place, script: Path, what: str, *flags: str) -> Command:
    run = place.start(
        *(
            "run",
            "--job",
            "t",
            "--node",
            "n",
            "--nproc-per-node",
            "3",
            "--slots",
            "4",
            "--overlap",
            "1",
            "--threads",
            "1",
        ),
        *flags,
        str(script),
        what,
    )
    assert run.wait(240.0) == 0, run.shown
    return run


@pytest.mark.parametrize("flags", [(), pytest.param(("--no-lanes",), marks=pytest.mark.slow)], ids=["lanes", "sockets"])
def test_a_calm_run_has_the_same_weights(place, flags):
    script = place.script("train.py", SCRIPT)
    run = together(place, script, "calm", *flags)
    found = ends(run.shown)
    assert set(found) == {"n-0", "n-1", "n-2"}
    assert {digest for digest, _ in found.values()} == {alone(place, script, "calm")}
    assert all(early > 5 for _, early in found.values()), found


@pytest.mark.slow
def test_a_death_in_mid_backward(place):
    script = place.script("train.py", SCRIPT)
    run = together(place, script, "dies")
    found = ends(run.shown)
    assert {digest for digest, _ in found.values()} == {alone(place, script, "calm")}
    assert {"n-0", "n-2"} <= set(found)
    events = place.json("events", "--job", "t")
    assert any(e["event"]["kind"] == "worker.exited" for e in events)


def test_a_script_that_meddles_with_gradients_once(place):
    """What was on its way is committed nowhere: the ring breaks on purpose, the step is reduced again."""
    script = place.script("train.py", SCRIPT)
    run = together(place, script, "meddles")
    found = ends(run.shown)
    assert set(found) == {"n-0", "n-1", "n-2"}
    assert {digest for digest, _ in found.values()} == {alone(place, script, "meddles")}
    assert "the gradient of model.12.weight changes after backward has finished it" in run.shown
    assert all(early > 0 for _, early in found.values()), found
    broken = [e for e in place.json("events", "--job", "t") if e["event"]["kind"] == "ring.broken"]
    assert broken  # by whoever was heard first: one of them, or a neighbour
    proof = place.json("ledger", "verify", "--job", "t")
    assert proof["ok"]
