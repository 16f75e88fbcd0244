"""Rings of whole jobs in the order of the topology: at their beginning, when somebody joins, while they wait."""

from __future__ import annotations

import itertools

from reknit.core.events import AgentJoined, NodePulse
from support.town import Town


def join(town: Town, name: str, workers: int = 1, *, host: str = "", **labels: str) -> None:
    town.nodes[name] = True
    town.say(AgentJoined(node=name, run=town.run_id, host=host or name, pid=1, nproc=workers, labels=labels))
    for i in range(workers):
        town.register(f"{name}-{i}", node=name)


def test_a_job_begins_rack_by_rack() -> None:
    town = Town(max_nodes=4)
    for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r1"), ("d", "r2")):
        join(town, name, rack=rack)
    town.until(lambda: bool(town.worlds))
    assert town.members == ["a-0", "c-0", "b-0", "d-0"]


def test_a_job_begins_with_near_nodes_side_by_side() -> None:
    town = Town(max_nodes=4)
    far = {"a": {"c": 0.2, "b": 30.0, "d": 30.0}, "b": {"d": 0.2, "c": 30.0}, "c": {"d": 30.0}}
    for name in "abc":
        join(town, name)
    for name, rtt in far.items():
        town.pulse(NodePulse(node=name, rtt=rtt))
    join(town, "d")
    town.until(lambda: bool(town.worlds))
    assert town.members == ["a-0", "c-0", "b-0", "d-0"]
    assert town.world.status == "running"


def test_one_that_comes_back_stands_beside_its_own_in_a_planned_world() -> None:
    town = Town(max_nodes=2, nproc_per_node=2)
    join(town, "a", 2, host="h1")
    join(town, "b", 2, host="h2")
    town.until(lambda: bool(town.worlds))
    assert town.members == ["a-0", "a-1", "b-0", "b-1"]
    town.exited("a-0")
    town.until(lambda: town.members == ["a-1", "b-0", "b-1"])
    town.register("a-0", incarnation=2, node="a")
    town.until(lambda: "a-0" in town.members)
    assert town.members == ["a-1", "a-0", "b-0", "b-1"]
    assert town.world.planned


def test_what_is_measured_anew_is_no_reason_for_another_paused_world() -> None:
    town = Town(min_nodes=4, max_nodes=4, last_call=0.1)
    for name in "abc":
        join(town, name)
    town.until(lambda: bool(town.worlds), limit=200.0)
    assert town.world.status == "paused"
    for times in itertools.islice(itertools.cycle([(0.2, 30.0), (30.0, 0.2)]), 12):
        town.pulse(NodePulse(node="a", rtt={"b": times[0], "c": times[1]}))
        town.run(2.0)
    assert len(town.worlds) == 1
    assert town.members == ["a-0", "b-0", "c-0"]
