"""Polite leaves: drains, scale-downs, stops; one member goes, nothing is counted as a failure."""

from __future__ import annotations

import itertools

import pytest

from reknit.core.events import AgentJoined, AgentLeft, WorkerExited
from support.town import Town

SOON = 0.01


def ring_of(*workers: str, **spec: object) -> Town:
    town = Town(**{"min_nodes": 1, "max_nodes": 8, "last_call": 0.5, **spec})
    for worker in workers:
        town.register(worker)
    town.run(2.0)
    town.committed(3)
    return town


def test_leaving_is_only_remembered_until_the_worker_is_idle() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.leaving("b-0")
    town.run(5.0)
    assert len(town.worlds) == 1
    town.idle("b-0")
    assert town.until(lambda: "b-0" not in town.members) < SOON
    assert town.world.reason == "b-0 left as asked; 2 workers go on"
    assert town.world.evidence == ()
    town.exited("b-0", code=0, expected=True)
    town.run(2.0)
    assert len(town.worlds) == 2
    assert town.world.restarts == 0


def test_a_leaver_that_finishes_goes_too() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.leaving("b-0")
    town.finished("b-0", 5)
    assert town.until(lambda: "b-0" not in town.members) < SOON
    assert town.end is None


def test_the_exit_of_a_leaver_is_expected_whatever_its_code() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.leaving("b-0")
    town.exited("b-0", code=-9)
    assert town.until(lambda: "b-0" not in town.members) < SOON
    assert town.world.restarts == 0
    assert not town.houses[0].view.record.failures


def test_those_who_leave_are_listed_in_a_world_made_for_another_reason() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.leaving("b-0")
    town.kill("c-0")
    town.run(0.5)
    assert town.world.leaving == ("b-0",)


def test_a_drained_node_is_on_its_way_out_with_all_its_workers() -> None:
    town = ring_of("a-0", "b-0", "b-1")
    town.drain("b")
    town.kill("a-0")
    town.run(0.5)
    assert set(town.world.leaving) == {"b-0", "b-1"}
    town.exited("b-0", code=0)
    town.run(0.5)
    assert town.world.restarts == 1, "only the one that was killed"


def test_a_drained_worker_is_not_let_in_again_before_it_starts_anew() -> None:
    town = ring_of("a-0", "b-0")
    town.drain("c-0")
    body = town.start("c-0")
    town.bodies["c-0"] = body
    town.drain("c-0")
    town.run(1.0)
    town.say(WorkerExited(worker="c-0", incarnation=1, node="c", pid=body.pid, code=0, expected=True))
    town.register("c-0", 2)
    town.run(1.0)
    assert "c-0" in town.members


@pytest.mark.parametrize("order", list(itertools.permutations(["a", "b", "c"])))
def test_nodes_leave_politely_in_every_order(order: tuple[str, ...]) -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0")
    for node in order:
        town.leaving(f"{node}-0")
        town.run(0.5)
        town.idle(f"{node}-0")
        town.run(0.2)
        town.exited(f"{node}-0", code=0, expected=True)
        town.node_left(node)
        town.run(0.5)
    assert town.members == ["d-0"]
    assert (town.world.status, town.world.restarts, town.end) == ("running", 0, None)
    assert len(town.worlds) == 4
    for node in order:
        town.register(f"{node}-0", 2)
    town.run(2.0)
    assert sorted(town.members) == ["a-0", "b-0", "c-0", "d-0"]


def test_an_agent_that_left_takes_its_workers_with_it() -> None:
    town = ring_of("a-0", "b-0", "b-1")
    town.node_left("b")
    assert town.until(lambda: town.members == ["a-0"]) < SOON
    assert len(town.worlds) == 2
    assert town.world.restarts == 0


def test_a_join_of_a_newer_boot_overrides_any_leave_of_an_older_one() -> None:
    town = ring_of("a-0", "b-0")
    town.drain("b")
    town.leaving("b-0")
    town.node("b")
    town.register("b-0", 2)
    town.run(2.0)
    assert town.members == ["a-0", "b-0"]
    assert town.world.leaving == ()
    town.kill("a-0")
    town.run(0.5)
    assert town.world.leaving == ()


def test_the_last_word_of_an_agent_that_comes_after_its_successor_ends_nobody() -> None:
    town = ring_of("a-0", "b-0")
    before = next(seq for seq, event, _ in town.log if isinstance(event, AgentJoined) and event.node == "b")
    town.node("b")
    town.register("b-0", 2)
    town.run(2.0)
    town.say(AgentLeft(node="b", joined=before))
    town.run(2.0)
    assert town.members == ["a-0", "b-0"]
    assert not town.houses[0].view.record.nodes["b"].left
    now = town.houses[0].view.record.nodes["b"].seq
    town.say(AgentLeft(node="b", joined=now))
    town.run(2.0)
    assert town.members == ["a-0"]


def test_what_a_guard_says_of_its_agent_ends_all_of_the_node() -> None:
    town = ring_of("a-0", "b-0", "b-1", "c-0")
    arrival = next(seq for seq, event, _ in town.log if isinstance(event, AgentJoined) and event.node == "b")
    before = len(town.worlds)
    town.say(AgentLeft(node="b", reason="its agent (pid 7) ended", arrival=arrival - 1, swept=True))
    town.run(1.0)
    assert len(town.worlds) == before  # of an agent before this one
    for name in ("b-0", "b-1"):
        town.kill(name, silent=True)
    town.nodes["b"] = False
    town.say(AgentLeft(node="b", reason="its agent (pid 7) ended", arrival=arrival, swept=True))
    assert town.until(lambda: town.members == ["a-0", "c-0"]) < SOON
    assert len(town.worlds) == before + 1
    assert {(e.about, e.source) for e in town.world.evidence} == {("b-0", "dying"), ("b-1", "dying")}
    assert "its guard kills what is left of node b" in town.world.reason
    assert town.houses[0].view.record.nodes["b"].left


def test_all_leave_at_the_same_boundary_without_a_world_for_each() -> None:
    names = [f"{n}-0" for n in "abcdef"]
    town = ring_of(*names)
    town.stop()
    for name in names:
        town.leaving(name)
    for i, name in enumerate(names):
        town.later(0.01 * i, lambda name=name: town.finished(name, 5))
        town.later(0.2 + 0.01 * i, lambda name=name: town.exited(name, code=0, expected=True))
    town.run(3.0)
    assert town.end is not None
    assert town.end.outcome == "stopped"
    assert [w.status for w in town.worlds] == ["running", "finished"]


def test_a_leaver_that_hangs_on_is_not_waited_for_by_those_who_stay() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    for name in ("a-0", "b-0", "c-0"):
        town.leaving(name)
    town.idle("a-0")
    town.run(0.5)
    assert town.members == ["b-0", "c-0"]


def test_stop_ends_the_run_when_all_are_gone() -> None:
    town = ring_of("a-0", "b-0")
    town.stop()
    town.run(10.0)
    assert town.end is None
    for name in ("a-0", "b-0"):
        town.exited(name, code=0, expected=True)
        town.run(0.5)
    assert town.end is not None
    assert (town.end.outcome, town.end.run) == ("stopped", "run1")
    assert town.world.status == "finished"


def test_stop_at_once_is_bounded_even_if_nobody_reports() -> None:
    town = ring_of("a-0", "b-0")
    town.stop(at_once=True)
    for name in ("a-0", "b-0"):
        town.kill(name, silent=True)
        town.disconnect(town.bodies[name].client_id)
    assert town.until(lambda: town.end is not None, 10.0) < 6.0


def test_a_stop_lets_nobody_in() -> None:
    town = ring_of("a-0", "b-0")
    town.stop()
    town.register("c-0")
    town.run(2.0)
    assert len(town.worlds) == 1


def test_a_stop_before_anything_started_ends_the_run() -> None:
    town = Town()
    town.stop()
    town.run(0.5)
    assert town.end is not None
    assert town.end.outcome == "stopped"
