"""A town of real agents, each on a host of its own, with a worker that trains; hosts are unplugged, a link is cut.

`pytest -m slow tests/gossip/test_agents.py`. REKNIT_TOWN says how many hosts; each takes some 280 MB and a few seconds
of a core to boot.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from reknit.gossip.preset import TRAIN
from reknit.gossip.tally import observers
from support.agents import until
from support.hosts import Hosts, NoHosts
from support.launchers import Place
from support.trainings import JOB, PLANE, Training

SIZE = int(os.environ.get("REKNIT_TOWN", "20"))
BOOT = 400.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIGHT = '''
"""Hardly computes; notes each step as the tests of breaks do."""

import json
import os
import pathlib
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import reknit

folder = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(400, 4))
with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    diary = (folder / f"{ring.id}.{os.getpid()}.jsonl").open("a", buffering=1)
    for step in ring.steps(data, micro_batch=1, slots=40, epochs=1_000_000):
        computed = 0
        for (x,) in step:
            step.backward(model(x).square().mean())
            computed += 1
        optimizer.step()
        line = {"step": step.index, "generation": step.generation, "time": time.time(), "pid": os.getpid()}
        diary.write(json.dumps({**line, "worker": ring.id, "slots": computed, "digest": ""}) + "\\n")
        time.sleep(0.3)
'''


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    nodes = [f"h{i}" for i in range(SIZE)]
    try:
        with Hosts() as hosts:
            place = Place(tmp_path_factory.mktemp("town"))
            made = Training(place, hosts, nodes, script=LIGHT)
            try:
                made.begin(trains=False)
                until(made.steps, "the first step", BOOT)
                made.until_trains(made.everybody, within=BOOT)
                yield made
            finally:
                made.end()
    except NoHosts as error:
        pytest.skip(str(error))


class Reports:
    """What agents say of their neighbours, followed on the control plane's host."""

    def __init__(self, run: Training) -> None:
        file = run.place.home / PLANE / "up" / "endpoint.json"
        self._process = subprocess.Popen(
            [*run.hosts.hosts[PLANE].wrap, sys.executable, "-m", "support.pulse_reader", str(file), JOB],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        )
        self._said: dict[str, list[str]] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            report = json.loads(line)
            self._said[report["node"]] = report["silent"]

    @property
    def nodes(self) -> set[str]:
        """Those that are heard."""
        return set(self._said)

    @property
    def silent(self) -> set[str]:
        """Nodes that somebody gets no answer from."""
        return {name for names in self._said.values() for name in names}

    def end(self) -> None:
        """Stop listening."""
        self._process.kill()
        self._process.wait()
        self._thread.join()


@pytest.fixture
def reports(town: Training) -> Iterator[Reports]:
    made = Reports(town)
    try:
        until(lambda: made.nodes == set(town.nodes), "all agents are heard")
        until(lambda: not made.silent, "all answer all")
        yield made
    finally:
        made.end()


def removals(run: Training, since: float) -> list[set[str]]:
    """Who was taken out since then, world by world."""
    return [set(e["removed"]) for e in run.events("world.changed", since) if e["removed"]]


def test_three_unplugged_hosts_are_one_change_of_the_world_and_come_back(town: Training, reports: Reports) -> None:
    ring = town.ring()
    lost = {ring[2], ring[9], ring[15]} if SIZE >= 16 else {ring[1]}
    pids = {worker: town.worker(worker) for worker in town.everybody}
    at = town.now()
    for worker in lost:
        town.hosts.unplug(town.host(worker))
    try:
        seconds = town.mended(at, town.everybody - lost)
        print(f"{len(lost)} of {SIZE} hosts unplugged: the others trained again after {seconds:.2f} s")
        town.goes_on(town.everybody - lost, 5)
        assert removals(town, at) == [lost]
        told = next(e for e in town.events("world.changed", at) if e["removed"])
        assert {e["about"] for e in told["evidence"] if e["source"] == "gossip"} == lost, told["evidence"]
    finally:
        for worker in lost:
            town.hosts.plug(town.host(worker))
    town.whole(town.now())
    until(lambda: not reports.silent, "all answer all again")
    assert removals(town, at) == [lost]
    assert {worker: town.worker(worker) for worker in town.everybody} == pids, "a process was started anew"


def test_a_link_between_two_that_is_cut_evicts_nobody(town: Training, reports: Reports) -> None:
    """Of an agent and one that it watches, which are no neighbours in the ring: only gossip notices."""
    names = sorted(town.nodes)
    ring = [worker.partition("-")[0] for worker in town.ring()]
    apart = {
        (name, watcher)
        for name, watchers in observers(names, TRAIN).items()
        for watcher in watchers
        if abs(ring.index(name) - ring.index(watcher)) not in (1, len(ring) - 1)
    }
    a, b = (town.hosts.hosts[name] for name in min(apart))
    at = town.now()
    town.hosts.cut(a, b)
    try:
        until(lambda: a.name in reports.silent, "its observer says so")
        time.sleep(5.0)
        town.goes_on(town.everybody, 3)
        assert removals(town, at) == []
    finally:
        town.hosts.heal(a, b)
    until(lambda: not reports.silent, "and takes it back")
    assert removals(town, at) == []
