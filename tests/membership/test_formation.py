"""When the ring begins, who is in it, below the minimum, above the maximum, and after scaling."""

from __future__ import annotations

import pytest

from reknit.core.events import AgentJoined, AgentLeft, JobFinished, TargetsSet
from reknit.services.membership.record import LOST
from support.town import TERMS, House, Town


def test_the_ring_begins_at_once_when_all_expected_are_there() -> None:
    town = Town(max_nodes=1, nproc_per_node=3)
    town.node("a", 3)
    town.register("a-0")
    town.register("a-2")
    town.run(1.0)
    assert not town.worlds
    town.register("a-1")
    assert town.until(lambda: bool(town.worlds)) < 0.05
    assert town.members == ["a-0", "a-1", "a-2"]
    assert town.world.generation == 1
    assert town.world.added == ("a-0", "a-1", "a-2")
    assert town.world.reason == "the ring begins: 3 of 3 workers registered; 3 workers begin"


@pytest.mark.parametrize("last_call", [0.5, 3.0, 10.0])
def test_the_last_call_is_bounded_and_the_option_has_its_effect(last_call: float) -> None:
    town = Town(min_nodes=2, max_nodes=4, last_call=last_call)
    town.register("a-0")
    town.run(5.0)
    town.register("b-0")
    took = town.until(lambda: bool(town.worlds) and town.world.status == "running")
    assert last_call <= took <= last_call + 0.2
    assert town.members == ["a-0", "b-0"]


@pytest.mark.parametrize("delays", [(0, 5, 25, 26), (0, 0, 0, 0), (0, 2.9, 3.1, 6.2), (0, 0.01, 3.0, 3.0)])
def test_staggered_nodes_all_come_in(delays: tuple[float, ...]) -> None:
    town = Town(min_nodes=2, max_nodes=4, last_call=3.0)
    for name, delay in zip("abcd", delays, strict=True):
        town.later(delay, lambda name=name: town.register(f"{name}-0") and None)
    town.run(max(delays) + 4.0)
    assert sorted(town.members) == ["a-0", "b-0", "c-0", "d-0"]
    first = next(w for w in town.worlds if w.status == "running")
    assert len(first.members) >= 2


def test_simultaneous_starts_make_one_world_whatever_the_order_of_arrival() -> None:
    for order in (["a-0", "b-0", "c-0", "d-0"], ["d-0", "b-0", "a-0", "c-0"], ["c-0", "d-0", "b-0", "a-0"]):
        town = Town(min_nodes=1, max_nodes=4)
        for name in order:
            town.register(name)
        town.run(5.0)
        assert [w.generation for w in town.worlds] == [1]
        assert town.members == ["a-0", "b-0", "c-0", "d-0"]


def test_two_workers_of_one_node_are_not_two_nodes() -> None:
    town = Town(min_nodes=2, max_nodes=2, nproc_per_node=2)
    town.register("a-0")
    town.register("a-1")
    town.run(10.0)
    assert not [w for w in town.worlds if w.status == "running"]
    town.register("b-0")
    town.run(4.0)
    assert town.members == ["a-0", "a-1", "b-0"]


def test_too_few_are_announced_as_paused_with_what_is_awaited() -> None:
    town = Town(min_nodes=2, max_nodes=2)
    town.register("a-0")
    town.run(5.0)
    assert town.world.status == "paused"
    assert town.members == ["a-0"], "it is no less a member for waiting"
    assert town.world.awaiting == "1 more node with a worker (at least 2; a is there)"
    count = len(town.worlds)
    town.run(60.0)
    assert len(town.worlds) == count, "nothing new is not said again"
    town.register("b-0")
    town.run(1.0)
    assert town.world.status == "running"
    assert town.members == ["a-0", "b-0"]
    assert town.world.awaiting == ""


def test_processes_that_still_boot_are_no_news() -> None:
    town = Town(min_nodes=1, max_nodes=2)
    town.start("a-0")
    town.run(20.0)
    assert not town.worlds


def test_below_the_minimum_the_world_pauses_and_comes_back() -> None:
    town = Town(min_nodes=3, max_nodes=3)
    town.begin("a-0", "b-0", "c-0")
    town.committed(3)
    town.kill("c-0")
    town.run(0.5)
    assert (town.world.status, town.members) == ("paused", ["a-0", "b-0"])
    assert town.world.awaiting == "1 more node with a worker (at least 3; a, b are there)"
    assert "too few to go on" in town.world.reason
    town.register("c-0", 2)
    assert town.until(lambda: town.world.status == "running") < 1.0
    assert town.members == ["a-0", "b-0", "c-0"]


def test_nobody_left_is_a_legal_state() -> None:
    town = Town(min_nodes=1, max_nodes=2)
    town.begin("a-0", "b-0")
    town.committed(3)
    town.kill("a-0")
    town.kill("b-0")
    town.run(1.0)
    assert (town.world.status, town.members) == ("paused", [])
    assert len(town.worlds) == 2, "two deaths at once are one change"
    town.run(60.0)
    assert len(town.worlds) == 2
    town.register("b-0", 2)
    town.run(0.3)
    assert town.members == [], "the other one may come back as well"
    town.register("a-0", 2)
    town.run(0.3)
    assert (town.world.status, town.members) == ("running", ["a-0", "b-0"])


def test_after_a_total_loss_only_those_who_may_come_are_waited_for() -> None:
    town = Town(min_nodes=1, max_nodes=4, nproc_per_node=1, last_call=30.0)
    town.register("a-0")
    town.run(31.0)
    town.committed(3)
    town.kill("a-0")
    town.run(1.0)
    town.register("a-0", 2)
    assert town.until(lambda: town.world.status == "running") < 0.5


def test_extras_are_spares_and_a_spare_takes_over() -> None:
    town = Town(min_nodes=1, max_nodes=2, last_call=1.0)
    town.register("a-0")
    town.register("b-0")
    town.run(2.0)
    town.register("c-0")
    town.run(1.0)
    assert town.roles == {"a-0": "active", "b-0": "active", "c-0": "spare"}
    assert "c-0 joined as a spare" in town.world.reason
    town.kill("a-0")
    town.run(0.1)
    assert town.members == ["c-0", "b-0"]
    assert town.roles == {"c-0": "active", "b-0": "active"}
    assert "c-0 takes over from the spares" in town.world.reason
    town.register("a-0", 2)
    town.run(1.0)
    assert town.roles["a-0"] == "spare"


def test_a_spare_that_has_caught_up_is_preferred_and_those_of_the_beginning_have() -> None:
    town = Town(min_nodes=3, max_nodes=2, last_call=0.5)
    town.begin("a-0", "b-0", "c-0")
    town.committed(3)
    town.kill("c-0")
    town.run(1.0)
    town.learn = None
    town.register("d-0")
    town.register("e-0")
    town.run(1.0)
    assert town.roles == {"a-0": "active", "b-0": "active", "d-0": "spare", "e-0": "spare"}, "they learn in the ring"
    town.caught_up("e-0")
    town.kill("a-0")
    town.run(1.0)
    assert town.members == ["e-0", "b-0", "d-0"]


def test_spares_of_the_beginning_are_current() -> None:
    town = Town(min_nodes=1, max_nodes=2, spares=1, last_call=0.5)
    town.begin("a-0", "b-0", "c-0")
    town.learn = None
    town.register("d-0")
    town.run(1.0)
    record = town.houses[0].view.record
    assert {name for name, w in record.workers.items() if w.current} == {"a-0", "b-0", "c-0"}


def test_hot_spares_are_waited_for_like_all_others() -> None:
    town = Town(min_nodes=1, max_nodes=1, nproc_per_node=1, spares=1)
    town.register("a-0")
    town.run(0.5)
    assert not town.worlds
    town.register("a-1")
    town.run(0.5)
    assert town.roles == {"a-0": "active", "a-1": "spare"}


def test_a_refused_worker_is_not_waited_for() -> None:
    town = Town(min_nodes=1, max_nodes=2, last_call=30.0)
    town.register("a-0")
    town.register("b-0", run="another")
    assert town.until(lambda: bool(town.worlds)) < 1.0
    assert town.members == ["a-0"]


def test_scaling_up_tells_every_node_its_number() -> None:
    town = Town(min_nodes=1, max_nodes=2, nproc_per_node=1)
    town.begin("a-0", "b-0")
    assert town.targets == {}
    town.scale(5)
    assert town.until(lambda: bool(town.targets)) < 0.01
    assert town.targets == {"a": 3, "b": 2}
    assert "scaled to 5 workers on 2 nodes" in town.reasons
    town.run(1.0)
    assert len(town.worlds) == 1, "nobody has come yet"
    for name in ("a-1", "a-2", "b-1"):
        town.register(name)
    town.run(10.0)
    assert list(town.roles.values()) == ["active"] * 5
    assert [w.planned for w in town.worlds] == [False, True], "one world for the state that was asked for"


def test_scaling_down_demotes_nobody_and_promotes_no_spare() -> None:
    town = Town(min_nodes=1, max_nodes=2, nproc_per_node=2)
    town.begin("a-0", "a-1", "b-0", "b-1")
    town.scale(2)
    town.run(0.5)
    assert town.targets == {"a": 1, "b": 1}
    assert set(town.roles.values()) == {"active"}
    for name in ("a-1", "b-1"):
        town.leaving(name)
    for i, name in enumerate(("a-1", "b-1")):
        town.later(0.03 * i, lambda name=name: town.idle(name))
    town.run(5.0)
    assert town.members == ["a-0", "b-0"]
    assert [w.planned for w in town.worlds] == [False, True]


def test_targets_are_said_once_and_again_only_when_they_change() -> None:
    town = Town(houses=2, min_nodes=1, max_nodes=2)
    town.begin("a-0", "b-0")
    for number in (3, 3, 4):
        town.scale(number)
        town.run(1.0)
    said = [e for _, e, _ in town.log if isinstance(e, TargetsSet)]
    assert [e.targets for e in said] == [{"a": 2, "b": 1}, {"a": 2, "b": 2}]
    assert len(town.worlds) == 1
    view = town.replay()
    assert view.record == town.houses[0].view.record
    town.houses[0] = House(view)
    town.run(5.0)
    assert [e for _, e, _ in town.log if isinstance(e, TargetsSet)] == said


def test_a_stale_service_cannot_take_targets_back() -> None:
    town = Town(min_nodes=1, max_nodes=2)
    town.begin("a-0", "b-0")
    town.scale(3)
    old = town.houses[0].view
    town.run(1.0)
    town.scale(2)
    town.run(1.0)
    assert town.targets == {"a": 1, "b": 1}
    town.houses.append(House(old))  # it has heard the first wish only, and asks for the same once more
    town.run(1.0)
    assert town.targets == {"a": 1, "b": 1}


def test_the_next_run_is_told_targets_anew() -> None:
    town = Town(min_nodes=1, max_nodes=1)
    town.begin("a-0")
    town.scale(2)
    town.run(1.0)
    town.say(JobFinished(run="run1", outcome="stopped"))
    town.submit("run2", max_nodes=1)
    town.node("a")
    town.register("a-0", 2)
    town.run(1.0)
    town.scale(2)
    town.run(1.0)
    said = [(e.run, e.targets) for _, e, _ in town.log if isinstance(e, TargetsSet)]
    assert said == [("run1", {"a": 2}), ("run2", {"a": 2})]


def test_a_new_node_gets_its_share_after_scaling() -> None:
    town = Town(min_nodes=1, max_nodes=2)
    town.begin("a-0", "b-0")
    town.scale(4)
    town.run(0.5)
    town.node("c")
    town.run(0.5)
    assert town.targets == {"a": 2, "b": 1, "c": 1}
    town.node_left("b")
    town.run(0.5)
    assert town.targets == {"a": 2, "c": 2}


def test_members_carry_what_peers_need() -> None:
    town = Town(max_nodes=1)
    body = town.register("a-0", terms=TERMS)
    town.run(1.0)
    member = town.world.members[0]
    assert (member.worker, member.node, member.pid, member.address, member.incarnation) == (
        "a-0",
        "a",
        body.pid,
        body.address,
        1,
    )
    assert town.world.decided_by == "m0"


def test_a_node_whose_agent_was_killed_is_said_to_have_left_and_gets_no_target() -> None:
    town = Town(min_nodes=1, max_nodes=2)
    town.begin("a-0", "b-0")
    town.scale(4)
    town.run(1.0)
    assert town.targets == {"a": 2, "b": 2}
    town.nodes["b"] = False
    town.kill("b-0", silent=True)
    town.disconnect(town.bodies["b-0"].client_id)
    town.disconnect(0, "agent/b")
    town.run(50.0)
    assert town.targets == {"a": 2, "b": 2}, "it may come back"
    town.run(15.0)
    assert town.targets == {"a": 4}
    left = [e for _, e, _ in town.log if isinstance(e, AgentLeft)]
    assert [e.node for e in left] == ["b"]
    town.node("b")
    town.run(1.0)
    assert town.targets == {"a": 2, "b": 2}


@pytest.mark.parametrize("agent_first", [True, False])
def test_what_is_said_of_an_agent_that_is_gone_does_not_hit_its_successor(agent_first: bool) -> None:
    """The service says so at the moment in which the node comes back; its word is on the log after the arrival."""
    town = Town(min_nodes=1, max_nodes=2)
    town.begin("a-0", "b-0")
    arrival = next(seq for seq, e, _ in town.log if isinstance(e, AgentJoined) and e.node == "b")
    town.nodes["b"] = False
    town.kill("b-0", silent=True)
    town.disconnect(town.bodies["b-0"].client_id)
    town.run(5.0)
    if agent_first:
        town.node("b")
    town.register("b-0", incarnation=2)
    town.run(3.0)
    town.say(AgentLeft(node="b", reason=LOST, arrival=arrival))
    town.run(3.0)
    assert town.members == ["a-0", "b-0"]
    assert not town.houses[0].view.record.nodes["b"].left


def test_nobody_is_said_to_have_left_while_nobody_at_all_is_heard() -> None:
    town = Town(min_nodes=1, max_nodes=2)
    town.begin("a-0", "b-0")
    town.nodes["b"] = False
    town.kill("b-0", silent=True)
    town.disconnect(0, "agent/b")
    town.run(10.0)
    town.muted = True
    town.run(55.0)
    assert not [e for _, e, _ in town.log if isinstance(e, AgentLeft)]
    town.muted = False
    town.run(70.0)
    assert [e.node for _, e, _ in town.log if isinstance(e, AgentLeft)] == ["b"]


def test_a_node_that_was_cut_off_for_minutes_is_there_again_when_its_worker_is() -> None:
    """Its agent never went, so it does not say that it joins."""
    town = Town(min_nodes=1, max_nodes=2)
    town.begin("a-0", "b-0")
    body = town.bodies["b-0"]
    for _ in range(2):
        town.nodes["b"], body.beats, body.dial = False, False, "silent"
        town.run(100.0)
        assert town.members == ["a-0"]
        assert town.houses[0].view.record.nodes["b"].left
        town.nodes["b"], body.beats, body.dial = True, True, "open"
        town.again("b-0")
        town.caught_up("b-0")
        town.run(5.0)
        assert town.members == ["a-0", "b-0"]
        assert not town.houses[0].view.record.nodes["b"].left


def test_a_living_agent_without_workers_is_no_lost_node() -> None:
    town = Town(min_nodes=1, max_nodes=2)
    town.begin("a-0", "b-0")
    town.kill("b-0")
    town.run(100.0)
    assert not [e for _, e, _ in town.log if isinstance(e, AgentLeft)]
