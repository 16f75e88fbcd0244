"""Nodes that go, come back and flap: real launchers, agents and workers, each node on a host of its own.

`pytest -m slow tests/breaks/test_nodes.py`. One job runs through all tests but the last; each step that any worker
ever completed is compared with the calm run's.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterable

import pytest

from support.breaks import record
from support.stages import Stage
from support.trainings import MEND, PLANE, START, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DRAINED = 128 + signal.SIGTERM
"""Exit code of a launcher that was asked to go."""


def pids_of(run: Training, workers: Iterable[str]) -> dict[str, int]:
    return {worker: run.worker(worker) for worker in workers}


def kill(run: Training, node: str) -> float:
    """SIGKILL everything of a node; when."""
    at = run.signal(signal.SIGKILL, *run.pids(node))
    run.launchers[node].wait()
    return at


# ----------------------------------------------------------------------------------------------------- M01


def test_agent_and_worker_are_killed_in_one_go(run: Training) -> None:
    """Nobody is left to say so; the launcher starts another agent."""
    worker = run.ring()[1]
    node, rest = worker[0], run.everybody - {worker}
    pids = pids_of(run, rest)
    at = run.signal(signal.SIGKILL, *run.pids(node, "reknit.worker.agent"), run.worker(worker))
    record("agent and worker killed", run.mended(at, rest), level="hosts")
    run.goes_on(rest, 5)
    assert run.evicted(at) == {worker}
    run.whole(run.now())
    assert pids_of(run, rest) == pids, "a survivor was started anew"


# ----------------------------------------------------------------------------------------------------- M02, M13


def test_nodes_leave_one_at_a_time_until_one_is_left_and_come_back_under_their_names(run: Training) -> None:
    order = list(run.nodes)
    random.Random(2).shuffle(order)
    *leavers, last = order
    there = set(run.everybody)
    addresses = {m["worker"]: m["address"] for m in run.world()["members"]}
    for node in leavers:
        there -= {f"{node}-0"}
        pids = pids_of(run, there)
        at = run.now()
        run.launchers[node].signal(signal.SIGTERM)
        assert run.launchers[node].wait() == DRAINED, run.launchers[node].shown
        assert run.event("node.left", at, node=node)
        run.until_trains(there, run.now())
        assert run.evicted(at) == {f"{node}-0"}
        assert pids_of(run, there) == pids, "a survivor was started anew"
        assert all(e["computed_again"] == 0 for e in run.events("ring.recovered", at)), "it had not handed over"
    for node in leavers:
        run.start_node(node)
    run.whole(run.now())
    now = {m["worker"]: m["address"] for m in run.world()["members"]}
    assert all(now[f"{node}-0"] != addresses[f"{node}-0"] for node in leavers)
    assert now[f"{last}-0"] == addresses[f"{last}-0"]


# ----------------------------------------------------------------------------------------------------- M04


def test_a_node_that_flaps_is_held_back_and_comes_in_at_last(run: Training) -> None:
    """Killed and started again after various pauses, shorter and longer than its heartbeats and than its boot."""
    worker = run.ring()[2]
    node, rest = worker[0], run.everybody - {worker}
    pids = pids_of(run, rest)
    since = run.now()
    for pause in (0.2, 1.0, 0.2, 1.3, 0.2, 2.6):
        kill(run, node)
        time.sleep(pause)
        again = run.now()
        run.start_node(node)
        run.event("node.joined", again, node=node, within=START)
    run.whole(run.now())
    assert pids_of(run, rest) == pids, "a survivor was started anew"
    assert run.evicted(since) <= {worker}
    held = run.events("node.held", since)
    assert {e["node"] for e in held} == {node}
    assert {e["cause"] for e in held} == {"flapping"}
    assert next(n for n in run.json("nodes") if n["node"] == node)["flaps"] >= 3


# ----------------------------------------------------------------------------------------------------- the proof


def test_after_all_of_it_every_step_is_the_calm_runs(stage: Stage) -> None:
    if stage.run is None:
        pytest.skip("no job is left")
    assert stage.run.check() > 3


# ----------------------------------------------------------------------------------------------------- M16, M23


def test_all_leave_and_start_again_while_the_broker_stands_still(run: Training) -> None:
    """What they said of leaving comes late, after they have begun anew; zero members are no trouble."""
    broker = run.pids(PLANE, "nats-server")
    services = run.pids(PLANE, "reknit.services.")
    old = {m["worker"]: m["incarnation"] for m in run.world()["members"]}
    for node in run.nodes:
        run.launchers[node].signal(signal.SIGTERM)
    time.sleep(0.1)
    run.signal(signal.SIGSTOP, *broker)
    try:
        gone = [node for node in run.nodes if run.launchers[node].process.poll() is None]
        for node in gone:
            run.launchers[node].signal(signal.SIGTERM)  # twice: it does not wait for the broker
        for node in run.nodes:
            run.launchers[node].wait(MEND)
            run.start_node(node)
        time.sleep(2.0)
    finally:
        run.signal(signal.SIGCONT, *broker)
    run.whole(run.now())
    assert all(m["incarnation"] > old[m["worker"]] for m in run.world()["members"])
    assert run.pids(PLANE, "reknit.services.") == services, "a service was started anew"
