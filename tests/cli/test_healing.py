"""A node that fails and one that flaps: kept out, shown with the reason, let in when the time is over."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from support.agents import until
from support.launchers import Command, Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

# Workers of node b raise as long as the file `bad` is there.
FRAIL = """
import pathlib, sys, time
import torch
from torch.utils.data import TensorDataset
import reknit

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
gate, bad = map(pathlib.Path, sys.argv[1:])
with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    for step in ring.steps(data, micro_batch=4, slots=4, epochs=100_000, seed=0):
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        if ring.id.startswith("b-") and bad.exists():
            raise RuntimeError("this host is broken")
        if gate.exists():
            break
        time.sleep(0.05)
"""


@pytest.fixture(params=["1:2"])
def nodes(place: Place, request: pytest.FixtureRequest) -> Iterator[dict[str, Command]]:
    """Two nodes that train."""
    script = str(place.script("frail.py", FRAIL))
    started = {}
    for node in ("a", "b"):
        common = ("run", "--job", "t", "--nnodes", request.param, "--last-call", "1", "--max-restarts", "50")
        started[node] = place.start(*common, "--node", node, script, "gate", "bad")
    for node in started:
        until(lambda node=node: f"{node}-0" in members(place), f"{node} trains", 120.0)  # type: ignore[misc]
    yield started
    place.open("gate")
    assert started["a"].wait() == 0, started["a"].shown
    place.nothing_left()


def members(place: Place) -> set[str]:
    found = place.call("world", "--job", "t", "--json", code=None)
    world = json.loads("\n".join(found.out)) if found.process.returncode == 0 else None
    return {m["worker"] for m in world["members"]} if world else set()


def row(place: Place, node: str) -> dict[str, Any]:
    return next(n for n in place.json("nodes", "--job", "t") if n["node"] == node)


def events(place: Place, kind: str) -> list[dict[str, Any]]:
    rows = place.json("events", "--job", "t")
    return [r for r in rows if r["event"]["kind"] == kind]


def test_a_node_in_quarantine_starts_no_workers_and_works_again_afterwards(
    place: Place, nodes: dict[str, Command]
) -> None:
    place.open("bad")
    until(lambda: events(place, "node.held"), "its workers failed often enough", 120.0)
    (place.folder / "bad").unlink()
    shown = row(place, "b")
    assert shown["state"] == "quarantined"
    assert shown["reason"].startswith("in quarantine for 60 s: 3 of its workers failed")
    assert shown["workers"] == 0
    assert "this host is broken" in nodes["b"].shown
    until(lambda: "no worker is started here meanwhile" in nodes["b"].shown, "its agent says so")
    assert members(place) == {"a-0"}
    until(lambda: members(place) == {"a-0", "b-0"}, "it is let in", 180.0)
    (held,) = events(place, "node.held")
    began = [e for e in events(place, "worker.started") if e["event"]["worker"] == "b-0" and e["seq"] > held["seq"]]
    assert len(began) == 1
    assert began[0]["time"] > held["event"]["until"] - 1.0, "not before it was over"
    assert row(place, "b")["state"] == "up"


@pytest.mark.parametrize("nodes", ["2"], indirect=True)
def test_a_run_that_cannot_go_on_without_a_node_in_quarantine_goes_on_with_it(
    place: Place, nodes: dict[str, Command]
) -> None:
    place.open("bad")
    until(lambda: events(place, "node.held"), "its workers failed often enough", 120.0)
    (place.folder / "bad").unlink()
    (held,) = events(place, "node.held")
    until(lambda: members(place) == {"a-0", "b-0"}, "it is let in", 120.0)
    world = place.json("world", "--job", "t")
    assert world["status"] == "running"
    committed = place.json("status", "--job", "t")["progress"]["committed"]
    until(lambda: place.json("status", "--job", "t")["progress"]["committed"] > committed, "it trains", 60.0)
    began = [e for e in events(place, "worker.started") if e["event"]["worker"] == "b-0" and e["seq"] > held["seq"]]
    assert began, "its agent started a worker"
    assert began[0]["time"] < held["event"]["until"], "nobody waited for the end of the quarantine"


def test_a_node_that_flaps_is_held_shown_with_the_reason_and_works_again(
    place: Place, nodes: dict[str, Command]
) -> None:
    def joined() -> list[int]:
        return [e["event"]["pid"] for e in events(place, "node.joined") if e["event"]["node"] == "b"]

    for again in range(5):
        os.kill(joined()[-1], signal.SIGKILL)
        until(lambda again=again: len(joined()) == again + 2, "another agent is started", 60.0)  # type: ignore[misc]
    shown = row(place, "b")
    assert shown["state"] == "held"
    assert "it came back 5 times, the last time too soon: held down for 10 s" in shown["reason"]
    assert shown["held_until"] > 0
    until(lambda: members(place) == {"a-0", "b-0"}, "it is let in", 120.0)
    until(lambda: row(place, "b")["state"] == "up", "it is up")
    assert row(place, "b")["flaps"] == 5
