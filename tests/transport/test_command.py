"""`reknit run --transport gloo`: a kill, and a run that goes on from a checkpoint, end with the bits of a calm run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import until
from support.launchers import Command, Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = """
import hashlib, pathlib, sys, time
import torch
from torch.utils.data import TensorDataset
import reknit

torch.manual_seed(0)
data = TensorDataset(torch.randn(128, 8), torch.randn(128, 1))
layers = [torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.1)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
gate, hold = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    for step in ring.steps(data, micro_batch=4, slots=8, epochs=10, seed=0):
        while step.index == hold and not gate.exists():
            time.sleep(0.01)
        if hold >= 0 and not gate.exists():
            time.sleep(0.1)  # time for a checkpoint
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(model(x), y) * 1000.0 ** (step.index % 3))
        optimizer.step()
        print("step", step.index, flush=True)
    state = b"".join(v.numpy().tobytes() for v in model.state_dict().values())
    print("hash", hashlib.sha256(state).hexdigest(), flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.clean()


def hashes(command: Command) -> set[str]:
    return set(re.findall(r"hash ([0-9a-f]{64})", command.shown))


def run(place: Place, job: str, *flags: str, hold: int = -1) -> Command:
    script = place.script("train.py", SCRIPT)
    return place.start("run", "--job", job, "--node", "n", *flags, str(script), "gate", str(hold))


def calm(place: Place, transport: str) -> str:
    alone = run(place, f"calm-{transport}", "--transport", transport)
    assert alone.wait(200) == 0, alone.shown
    (found,) = hashes(alone)
    return found


def test_a_kill_and_a_joiner_leave_the_bits(place: Place) -> None:
    expected = calm(place, "gloo")
    training = run(place, "t", "--transport", "gloo", "--nproc-per-node", "3", hold=12)
    training.until("step 11")
    worker = next(w for w in place.json("status", "--job", "t")["workers"] if w["worker"] == "n-1")
    os.kill(worker["pid"], signal.SIGKILL)
    until(lambda: place.json("world", "--job", "t")["generation"] >= 2, "a world without it", 60.0)
    place.open("gate")
    assert training.wait(200) == 0, training.shown
    assert hashes(training) == {expected}
    assert place.json("ledger", "verify", "--job", "t")["ok"]
    assert calm(place, "tcp") != expected


def test_a_resumed_run_has_the_bounds_of_the_one_before(place: Place) -> None:
    expected = calm(place, "gloo")
    first = run(place, "t", "--transport", "gloo", "--nproc-per-node", "2", "--checkpoint-every-steps", "7", hold=24)
    first.until("step 23")
    newest = until(lambda: max((c["step"] for c in listed(place)), default=0), "a checkpoint", 60.0)
    for pid in place.processes():
        os.kill(pid, signal.SIGKILL)
    first.wait()
    place.nothing_left()
    place.open("gate")
    again = run(
        place, "t", "--transport", "gloo", "--nproc-per-node", "2", "--checkpoint-every-steps", "7", "--resume", hold=24
    )
    assert again.wait(200) == 0, again.shown
    assert hashes(again) == {expected}
    begun = {int(number) for number in re.findall(r"step (\d+)$", again.shown, re.MULTILINE)}
    assert min(begun) == newest > 0


def listed(place: Place) -> list[dict[str, int]]:
    found: list[dict[str, int]] = place.json("checkpoints", "ls", "--job", "t")
    return found


def test_a_run_may_go_on_over_another_transport(place: Place) -> None:
    """Its bits are no other run's then, but it begins: what one transport tracks is no matter for the other."""
    for job, before, after in (("a", "gloo", "tcp"), ("b", "tcp", "gloo")):
        first = run(place, job, "--transport", before, "--nproc-per-node", "2", "--checkpoint-every-steps", "5")
        assert first.wait(200) == 0, first.shown
        script = place.script("longer.py", SCRIPT.replace("epochs=10", "epochs=12"))
        again = place.call(
            "run", "--job", job, "--node", "n", "--transport", after, "--resume", str(script), "gate", "-1", within=200
        )
        begun = {int(number) for number in re.findall(r"step (\d+)$", again.shown, re.MULTILINE)}
        assert max(begun) == 47
        assert min(begun) > 0, "it began anew"
