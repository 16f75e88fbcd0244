"""A second node whose arithmetic differs: refused by name, or let in and said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import until
from support.launchers import Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """
import pathlib, sys, time
import torch
from torch.utils.data import TensorDataset
import reknit

torch.manual_seed(0)
data = TensorDataset(torch.randn(240, 6), torch.randn(240, 1))
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    for step in ring.steps(data, micro_batch=4, slots=6, epochs=200, seed=0):
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        if not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.03)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.clean()


@pytest.mark.parametrize("numerics", ["strict", "relaxed"])
def test_a_node_with_other_threads(place: Place, numerics: str) -> None:
    script = str(place.script("train.py", SCRIPT))
    common = ("run", "--job", "j", "--nnodes", "1:2", "--numerics", numerics)
    first = place.start(*common, "--node", "a", "--threads", "1", script, "gate")
    first.until("loss ")
    second = place.start(*common, "--node", "b", "--threads", "2", script, "gate")
    if numerics == "strict":
        assert second.wait(90.0) != 0, second.shown
        assert "numerics.threads differs: the job has 1, this worker has 2" in second.shown
        assert place.json("status", "--job", "j")["inexact"] == {}
    else:
        until(lambda: place.json("status", "--job", "j")["inexact"], "it is said", 90.0)
        status = place.json("status", "--job", "j")
        assert status["inexact"] == {"b-0": "numerics.threads differs: the job has 1, this worker has 2"}
        assert (
            "exact    no: b-0 takes part although numerics.threads differs" in place.call("status", "--job", "j").shown
        )
        until(
            lambda: "run-not-exact" in {a["alert"] for a in place.json("status", "--job", "j")["alerts"]}, "alert", 60.0
        )
        until(lambda: place.json("status", "--job", "j")["world"]["size"] == 2, "both take part", 90.0)
    place.open("gate")
    assert first.wait(120.0) == 0, first.shown
    if numerics == "relaxed":
        assert second.wait(60.0) == 0, second.shown
