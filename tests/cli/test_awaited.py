"""What a run waits for, said once: the decision, and what a run without a terminal shows."""

from __future__ import annotations

import time

from reknit.cli.awaited import AGAIN, Awaited
from reknit.cli.progress import missing
from reknit.core.events import WorldChanged
from reknit.core.status import Status
from reknit.core.status_fold import see
from support.launchers import Place

WAITS = """
import pathlib, sys
import torch
import reknit

model = torch.nn.Linear(2, 1)
with reknit.join() as ring:
    ring.track(model=model)
    for step in ring.steps(torch.utils.data.TensorDataset(torch.zeros(64, 2)), micro_batch=2, slots=4):
        for (x,) in step:
            step.backward(model(x).mean())
"""


def test_the_same_is_said_again_only_after_a_minute() -> None:
    said = Awaited()
    assert said.worth("2 more nodes", 100.0)
    assert not said.worth("2 more nodes", 100.0 + AGAIN / 2)
    assert not said.worth("", 100.0 + AGAIN / 2), "nothing is missing"
    assert not said.worth("2 more nodes", 100.0 + AGAIN / 2), "nor has what is missing changed"
    assert said.worth("1 more node", 101.0 + AGAIN / 2)
    assert not said.worth("1 more node", 100.0 + AGAIN)
    assert said.worth("1 more node", 101.0 + AGAIN / 2 + AGAIN)


def test_only_a_paused_run_waits() -> None:
    status = Status("j")
    assert missing(status) == ""
    for state, waits in (("paused", "1 more node"), ("running", ""), ("finished", "")):
        world = WorldChanged(generation=1, run="", status=state, members=(), awaiting="1 more node")  # type: ignore[arg-type]
        assert missing(see(status, world, 0.0)) == waits


def test_a_run_without_a_terminal_says_once_that_a_node_is_missing(place: Place) -> None:
    script = str(place.script("waits.py", WAITS))
    run = place.start("run", "--job", "j", "--node", "n", "--nnodes", "2", "--nproc-per-node", "2", script)
    run.until("waiting for 1 more node")
    began = time.monotonic()
    # one more worker comes, and with it another world, but what is missing stays the same
    place.call("scale", "3", "--job", "j")
    run.until(": 3 workers, paused")
    said = [line for line in run.shown.splitlines() if "waiting for 1 more node" in line]
    assert len(said) == 1 or time.monotonic() - began > AGAIN, "\n".join(said)
    run.signal(2)
    run.wait()
