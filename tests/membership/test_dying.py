"""The kernel has begun to end a process: out of the ring at once, and its exit does the rest, once."""

from __future__ import annotations

import pytest

from reknit.core.events import WorkerDying, WorkerExited
from reknit.services.membership.cut import BURST, BURST_EACH, LONGEST_BURST
from support.town import Town

SOON = 0.06
"""Seconds, a few event round trips."""


def ring_of(*workers: str, **spec: object) -> Town:
    town = Town(**{"min_nodes": 1, "max_nodes": len(workers), **spec})
    town.begin(*workers)
    town.committed(3)
    town.run(2.0)
    return town


def test_a_world_at_once_and_none_for_the_exit() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.dies("b-0", exit_after=1.0)
    assert town.until(lambda: "b-0" not in town.members) < SOON
    assert [(e.source, e.certain) for e in town.world.evidence] == [("dying", True)]
    assert town.world.reason == f"b-0 died: the kernel ends its process (pid {town.bodies['b-0'].pid}); 2 workers go on"
    town.run(5.0)
    assert len(town.worlds) == 2


def test_ten_that_end_one_after_the_other_are_one_change_of_the_world() -> None:
    workers = [f"{node}-{i}" for node in "abc" for i in range(4)]
    town = ring_of(*workers)
    town.dies("a-1", others=("a-2", "a-3"))
    for number, worker in enumerate(workers[4:-1]):
        town.later(0.01 + 0.012 * number, lambda w=worker: town.dies(w))
    assert town.until(lambda: len(town.members) == 2, 1.0) < LONGEST_BURST + SOON
    assert len(town.worlds) == 2


def test_all_workers_of_a_node_whose_agent_lives_may_be_the_first_of_many() -> None:
    town = ring_of("a-0", "a-1", "b-0", "b-1", "c-0")
    town.dies("a-0", others=("a-1",))
    town.later(0.015, lambda: town.dies("b-0", others=("b-1",)))
    assert town.until(lambda: town.members == ["c-0"], 1.0) < 0.015 + BURST + 2 * BURST_EACH + SOON
    assert len(town.worlds) == 2


def test_who_was_killed_with_it_is_out_with_it_before_its_own_agent_says_so() -> None:
    town = ring_of("a-0", "a-1", "b-0")
    town.dies("a-0", others=("a-1",))
    town.later(0.3, lambda: town.dies("a-1"))
    assert town.until(lambda: town.members == ["b-0"], 1.0) < SOON
    town.run(2.0)
    assert len(town.worlds) == 2
    assert town.houses[0].view.record.restarts == 2


def test_late_news_of_a_process_does_not_end_its_successor() -> None:
    town = ring_of("a-0", "a-1", "b-0")
    old = town.bodies["a-1"].pid
    town.dies("a-1")
    town.run(1.0)
    town.register("a-1", 2)
    town.run(2.0)
    assert town.members == ["a-0", "a-1", "b-0"]
    body = town.bodies["a-0"]
    news = {"worker": "a-0", "incarnation": body.incarnation, "node": "a", "pid": body.pid}
    town.say(WorkerDying(**news, others={"a-1": old, "b-0": town.bodies["b-0"].pid, "c-0": 1}))
    town.run(1.0)
    assert town.members == ["a-1", "b-0"], "nor do an agent's words end another node's worker"


def test_two_that_die_do_not_wait_long_for_a_third() -> None:
    town = ring_of("a-0", "a-1", "b-0", "b-1")
    town.dies("a-0")
    town.dies("b-0")
    assert town.until(lambda: town.members == ["a-1", "b-1"], 1.0) < SOON


@pytest.mark.parametrize("exit_after", [0.0, 0.001, 0.03, 1.0])
def test_restarts_and_failures_are_counted_as_with_the_exit_alone(exit_after: float) -> None:
    towns = [ring_of("a-0", "b-0", "c-0"), ring_of("a-0", "b-0", "c-0")]
    towns[0].dies("b-0", exit_after)
    towns[1].later(exit_after, lambda: towns[1].kill("b-0"))
    for town in towns:
        town.run(2.0)
        town.register("b-0", 2)
        town.run(2.0)
        assert town.members == ["a-0", "c-0", "b-0"]
        assert town.world.restarts == 1
        (failure,) = town.houses[0].view.record.failures
        assert (failure.worker, failure.text) == ("b-0", "signal 9")
    assert towns[0].houses[0].view.record.restarts == towns[1].houses[0].view.record.restarts


def test_the_budget_is_spent_by_the_exit() -> None:
    town = ring_of("a-0", "b-0", max_restarts=1)
    for incarnation in (2, 3):
        town.dies("b-0")
        town.run(1.0)
        town.register("b-0", incarnation)
        town.run(1.0)
    assert town.end is not None
    assert town.end.outcome == "failed"
    assert "restart budget spent: 2" in town.end.reason
    assert town.end.reason.startswith("b-0: signal 9")


def test_whoever_has_finished_or_left_did_not_die() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.leaving("b-0")
    town.run(0.5)
    town.idle("b-0")
    town.dies("b-0", expected=True)
    town.run(2.0)
    assert "b-0 left as asked" in town.world.reason
    town.finished("c-0")
    town.dies("c-0", expected=True)
    town.finished("a-0")
    town.run(2.0)
    assert town.end is not None
    assert town.end.outcome == "completed"
    assert town.houses[0].view.record.restarts == 0
    assert not town.houses[0].view.record.failures


@pytest.mark.parametrize("how", ["drain", "node", "leaving", "expected"])
def test_whoever_was_asked_to_leave_has_left(how: str) -> None:
    town = ring_of("a-0", "b-0", "c-0")
    if how == "leaving":
        town.leaving("b-0")
    elif how != "expected":
        town.drain("b" if how == "node" else "b-0")
    town.dies("b-0", expected=how == "expected")
    town.run(2.0)
    assert town.members == ["a-0", "c-0"]
    assert "b-0 left as asked" in town.world.reason
    assert (town.world.restarts, town.houses[0].view.record.restarts) == (0, 0)


def test_a_script_that_raised_has_said_so_first() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    body = town.bodies["b-0"]
    dying = WorkerDying(worker="b-0", incarnation=1, node="b", pid=body.pid)
    town.later(0.01, lambda: town.say(dying) and None)
    town.failed("b-0")
    town.run(2.0)
    assert len(town.worlds) == 2
    assert "its script raised ValueError: boom" in town.world.reason
    assert town.world.restarts == 1


def test_the_last_one_too() -> None:
    town = ring_of("a-0", "b-0")
    for worker in ("a-0", "b-0"):
        town.dies(worker)
    town.run(1.0)
    assert town.world.status == "paused"
    for worker in ("a-0", "b-0"):
        town.register(worker, 2)
    town.run(4.0)
    assert town.world.status == "running"
    assert town.world.restarts == 2


def test_an_evicted_one_that_came_back_under_a_newer_number() -> None:
    """Its agent may still know the process by the incarnation that it was forked with."""
    town = ring_of("a-0", "b-0")
    body = town.bodies["b-0"]
    town.again("b-0", incarnation=2)
    town.run(1.0)
    assert {m.incarnation for m in town.world.members if m.worker == "b-0"} == {2}
    town.say(WorkerDying(worker="b-0", incarnation=1, node=body.node, pid=body.pid))
    town.run(1.0)
    assert town.members == ["a-0"]


@pytest.mark.parametrize(("worker", "incarnation"), [("b-0", 1), ("x-0", 1), ("b-0", 99)])
def test_late_and_strange_news(worker: str, incarnation: int) -> None:
    town = ring_of("a-0", "b-0")
    town.kill("b-0")
    town.run(1.0)
    town.register("b-0", 2)
    town.run(1.0)
    before = town.houses[0].view.record
    town.say(WorkerDying(worker=worker, incarnation=incarnation, node="b", pid=1))
    town.run(1.0)
    assert town.houses[0].view.record == before


def test_two_services_make_one_world_of_it() -> None:
    town = ring_of("a-0", "b-0", "c-0", houses=2)
    town.dies("b-0")
    town.dies("c-0", exit_after=None)
    town.run(3.0)
    assert len(town.worlds) == 2
    assert town.members == ["a-0"]
    assert sum(isinstance(e, WorkerExited) for _, e, _ in town.log) == 1


def test_before_it_registered_there_is_nothing_to_take_out() -> None:
    town = ring_of("a-0", "b-0", max_nodes=3)
    town.bodies["c-0"] = town.start("c-0")
    town.dies("c-0")
    town.run(2.0)
    assert len(town.worlds) == 1
    assert town.houses[0].view.record.restarts == 1
