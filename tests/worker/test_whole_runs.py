"""Evaluations under the real launcher, with its services: a worker that is killed in one, one that hangs in one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import until
from support.launchers import Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# One evaluation (`hold`: the first, `last`: the last) begins only when n-1 is in it and does not go on.
SCRIPT = """
import pathlib, sys, time
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset
import reknit

mark = pathlib.Path("n-1.held")
torch.manual_seed(0)
x = torch.randn(96, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def held(batch, which="hold"):
    if sys.argv[1] == which:
        if ring.id == "n-1" and not mark.exists():
            mark.touch()
            time.sleep(10000)
        while not mark.exists():
            time.sleep(0.01)
    return measure(batch)


def measure(batch):
    inputs, targets = batch
    return {"mse": F.mse_loss(model(inputs), targets)}


with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    for step in ring.steps(data, micro_batch=4, slots=4, epochs=3, seed=0):
        for inputs, targets in step:
            step.backward(F.mse_loss(model(inputs), targets))
        optimizer.step()
        if step.index == 5:
            print("FOUND middle", ring.evaluate(data, held, micro_batch=4)["mse"].hex(), flush=True)
    found = ring.evaluate(data, lambda batch: held(batch, "last"), micro_batch=4, name="end")
    print("FOUND end", found["mse"].hex(), flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.clean()


def found(text: str) -> dict[str, set[str]]:
    by: dict[str, set[str]] = {}
    for where, value in re.findall(r"FOUND (\w+) (\S+)", text):
        by.setdefault(where, set()).add(value)
    return by


def alone(place: Place, script: Path) -> dict[str, set[str]]:
    env = place.env | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), "go"]
    done = subprocess.run(command, env=env, cwd=place.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return found(done.stdout)


def test_a_worker_killed_in_an_evaluation(place: Place) -> None:
    script = place.script("train.py", SCRIPT)
    run = place.start("run", "--job", "t", "--node", "n", "--nproc-per-node", "3", str(script), "hold")
    until((place.folder / "n-1.held").exists, "n-1 in the evaluation", 120.0)
    (pid,) = [m["pid"] for m in place.json("world", "--job", "t")["members"] if m["worker"] == "n-1"]
    os.kill(pid, signal.SIGKILL)
    assert run.wait(120.0) == 0, run.shown
    assert found(run.shown) == alone(place, script)
    assert "every sample in exactly one committed step" in run.shown
    place.nothing_left()


def test_a_worker_that_hangs_in_an_evaluation_is_found_and_replaced(place: Place) -> None:
    script = place.script("train.py", SCRIPT)
    run = place.start(
        *("run", "--job", "t", "--node", "n", "--nproc-per-node", "2", "--stuck-after", "3"), str(script), "hold"
    )
    assert run.wait(180.0) == 0, run.shown
    assert found(run.shown) == alone(place, script)
    worlds = place.json("world", "--history", "--job", "t")
    assert any("n-1 died: it is on step 5" in w["reason"] for w in worlds), run.shown
    place.nothing_left()


def test_one_that_hangs_after_the_last_step_does_not_hold_up_the_end(place: Place) -> None:
    script = place.script("train.py", SCRIPT)
    run = place.start(
        *("run", "--job", "t", "--node", "n", "--nproc-per-node", "2", "--stuck-after", "3"), str(script), "last"
    )
    assert run.wait(180.0) == 1, run.shown
    assert found(run.shown) == alone(place, script)
    assert "training completed, but the script failed after it" in run.shown
    assert "the others have measured it and finished" in run.shown
    assert "time.sleep(10000)" in run.shown, "it says where it hangs"
    place.nothing_left()
