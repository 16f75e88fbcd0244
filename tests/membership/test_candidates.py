"""Newcomers learn beside the ring: who comes in, when, and what a learner that dies, stalls or comes back changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reknit.core.events import WorkerCaughtUp, WorkerStuck, WorldChanged
from support.town import House, Town


def ring_of(*workers: str, **spec: object) -> Town:
    """A ring that has committed steps, in a town where newcomers learn only when the test says so."""
    town = Town(**{"min_nodes": 1, "max_nodes": 8, "last_call": 0.5, **spec})
    for worker in workers:
        town.register(worker)
    town.run(2.0)
    town.committed(3)
    town.learn = None
    return town


def test_a_newcomer_is_no_member_until_it_has_caught_up() -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.run(60.0)
    assert len(town.worlds) == 1
    town.caught_up("c-0")
    assert 0.09 < town.until(lambda: "c-0" in town.members) < 0.15
    assert town.world.planned
    assert town.world.reason == "c-0 joined; 3 workers go on"
    town.run(60.0)
    assert len(town.worlds) == 2


@pytest.mark.parametrize(
    "end",
    [
        lambda town: town.kill("c-0"),
        lambda town: town.dies("c-0"),
        lambda town: town.failed("c-0"),
        lambda town: town.node_left("c"),
        lambda town: (town.leaving("c-0"), town.idle("c-0")),
        lambda town: town.exited("c-0", code=0, expected=True),
        lambda town: (town.kill("c-0", silent=True), town.disconnect(town.bodies["c-0"].client_id)),
    ],
)
def test_one_that_ends_while_it_learns_changes_no_world(end: Callable[[Town], object]) -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.run(1.0)
    end(town)
    town.run(1.0)
    town.say(WorkerCaughtUp(worker="c-0", incarnation=1, generation=1, step=4))  # late words
    town.run(5.0)
    assert len(town.worlds) == 1


def test_one_that_is_drained_while_it_learns_does_not_come_in() -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.drain("c")
    town.caught_up("c-0")
    town.run(5.0)
    assert len(town.worlds) == 1


def test_a_change_for_another_reason_takes_in_only_who_has_caught_up() -> None:
    town = ring_of("a-0", "b-0", "x-0")
    town.register("c-0")
    town.register("d-0")
    town.run(1.0)
    town.caught_up("d-0")
    town.kill("x-0")
    assert town.until(lambda: "x-0" not in town.members) < 0.01
    assert town.members == ["a-0", "b-0", "d-0"]
    assert town.world.reason.endswith("; d-0 joined; c-0 still learns; 3 workers go on")
    assert not town.world.planned


def test_several_that_catch_up_one_after_the_other_come_in_together() -> None:
    town = ring_of("a-0")
    for name in ("b-0", "c-0", "d-0"):
        town.register(name)
    for i, name in enumerate(("d-0", "b-0", "c-0")):
        town.later(0.4 * i, lambda name=name: town.caught_up(name))
    town.run(5.0)
    assert [sorted(m.worker for m in w.members) for w in town.worlds[1:]] == [["a-0", "b-0", "c-0", "d-0"]]


def test_a_slow_learner_holds_up_the_others_for_a_second_at_most() -> None:
    town = ring_of("a-0")
    town.register("b-0")
    town.register("c-0")
    town.run(1.0)
    town.caught_up("c-0")
    assert 0.9 < town.until(lambda: "c-0" in town.members) < 1.1
    town.run(30.0)
    assert town.members == ["a-0", "c-0"]


@pytest.mark.parametrize("incarnation", [1, 2])
def test_one_that_was_evicted_must_catch_up_again(incarnation: int) -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.bodies["b-0"].beats = False
    frozen = WorkerStuck(worker="b-0", incarnation=1, node="b", state="T stopped")
    town.later(0.5, lambda: town.say(frozen) and None)
    town.until(lambda: "b-0" not in town.members)
    town.bodies["b-0"].beats = True
    town.again("b-0", incarnation=incarnation, has_state_of=3)
    town.run(10.0)
    assert town.members == ["a-0", "c-0"]
    town.say(WorkerCaughtUp(worker="b-0", incarnation=3 - incarnation, generation=2, step=4))  # not of this life
    town.run(1.0)
    assert town.members == ["a-0", "c-0"]
    town.caught_up("b-0")
    town.run(1.0)
    assert town.members == ["a-0", "c-0", "b-0"]
    assert "b-0 came back with the state of step 3" in town.world.reason


def test_a_new_process_under_the_name_must_catch_up_itself() -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.caught_up("c-0")
    town.register("c-0", 2)
    town.run(5.0)
    assert len(town.worlds) == 1
    town.caught_up("c-0")
    town.run(1.0)
    assert [(m.worker, m.incarnation) for m in town.world.members][-1] == ("c-0", 2)


def test_in_a_paused_world_all_that_have_registered_count() -> None:
    town = ring_of("a-0", "b-0", min_nodes=2)
    town.kill("b-0")
    town.run(1.0)
    assert town.world.status == "paused"
    town.register("c-0")
    assert town.until(lambda: town.world.status == "running") < 0.5
    assert town.members == ["a-0", "c-0"]


def test_rather_with_one_that_still_learns_than_paused() -> None:
    town = ring_of("a-0", "b-0", min_nodes=2)
    town.register("c-0")
    town.run(1.0)
    town.kill("b-0")
    assert town.until(lambda: "b-0" not in town.members) < 0.01
    assert (town.world.status, town.members) == ("running", ["a-0", "c-0"])
    assert "c-0 joined" in town.world.reason
    record = town.houses[0].view.record
    assert not record.workers["c-0"].current, "it goes on learning in the ring"
    town.register("d-0")
    town.run(5.0)
    assert town.members == ["a-0", "c-0"]


@pytest.mark.parametrize("had_caught_up", [False, True])
@pytest.mark.parametrize("comes_back", [False, True])
def test_when_all_members_are_lost_the_ring_begins_with_those_who_wait(had_caught_up: bool, comes_back: bool) -> None:
    town = ring_of("a-0")
    town.register("c-0")
    town.run(1.0)
    if had_caught_up:
        town.caught_up("c-0")
    town.kill("a-0", silent=True)
    town.nodes["a"] = False
    town.disconnect(town.bodies["a-0"].client_id)
    if comes_back:
        town.later(0.2, lambda: town.register("a-0", 2) and None)
    took = town.until(lambda: len(town.worlds) > 1 and town.world.status == "running")
    assert (took < 0.1) == had_caught_up, "whoever has the state carries on at once"
    town.run(5.0)
    if comes_back and had_caught_up:
        assert town.members == ["c-0"]
        town.caught_up("a-0")
        town.run(1.0)
        assert town.world.planned
    assert sorted(town.members) == (["a-0", "c-0"] if comes_back else ["c-0"])
    if had_caught_up:
        assert [w.status for w in town.worlds] == ["running"] * len(town.worlds)
        assert town.worlds[1].reason.endswith("c-0 has the state, caught up in time; 1 worker begins")
        return
    current = {name for name, w in town.houses[0].view.record.workers.items() if w.current and name in town.members}
    assert current == set(town.members)


def test_whoever_has_the_state_waits_for_the_minimum_of_nodes() -> None:
    town = ring_of("a-0", "b-0", min_nodes=2)
    town.register("c-0")
    town.caught_up("c-0")
    town.kill("a-0")
    town.kill("b-0")
    town.run(10.0)
    assert (town.world.status, town.members) == ("paused", ["c-0"])
    town.register("d-0")
    assert town.until(lambda: town.world.status == "running") < 0.1
    assert town.members == ["c-0", "d-0"]
    record = town.houses[0].view.record
    assert (record.workers["c-0"].current, record.workers["d-0"].current) == (True, False)


def test_a_silent_heir_does_not_carry_on() -> None:
    town = ring_of("a-0")
    town.register("c-0")
    town.run(3.0)
    town.caught_up("c-0")
    town.bodies["c-0"].beats = False
    town.say(WorkerStuck(worker="c-0", incarnation=1, node="c", state="T stopped"))
    town.kill("a-0")
    town.run(0.3)
    assert town.world.status == "paused"
    town.register("a-0", 2)
    town.run(5.0)
    assert "a-0" in town.members
    assert town.world.status == "running"


def test_when_only_learners_are_left_in_the_ring_nobody_waits_outside() -> None:
    town = ring_of("a-0", "b-0", min_nodes=2)
    town.register("c-0")
    town.kill("b-0")
    town.run(1.0)
    assert town.members == ["a-0", "c-0"], "c-0 learns in the ring"
    town.register("d-0")
    town.register("e-0")
    town.run(1.0)
    town.kill("a-0")
    town.run(1.0)
    assert town.members == ["c-0", "d-0", "e-0"]
    assert town.world.status == "running"


def test_a_drained_member_is_kept_until_it_says_that_it_is_idle() -> None:
    town = ring_of("a-0")
    town.register("b-0")
    town.run(1.0)
    town.drain("a")
    town.leaving("a-0")
    town.run(10.0)
    assert len(town.worlds) == 1
    town.caught_up("b-0")
    town.until(lambda: "b-0" in town.members)
    assert town.world.leaving == ("a-0",)
    assert town.world.planned
    town.idle("a-0")
    town.until(lambda: town.members == ["b-0"])
    assert town.world.planned
    assert town.end is None


def test_if_the_last_one_leaves_nevertheless_the_others_begin_again() -> None:
    town = ring_of("a-0")
    town.register("b-0")
    town.run(1.0)
    town.leaving("a-0")
    town.finished("a-0", 5)
    town.run(3.0)
    assert town.members == ["b-0"]
    assert town.world.status == "running"
    assert town.end is None


def test_a_silent_candidate_is_not_let_in_until_it_is_heard_again() -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.run(3.0)
    town.bodies["c-0"].beats = False
    town.run(2.0)
    town.caught_up("c-0")
    town.run(10.0)
    assert len(town.worlds) == 1, "it would hold up the ring"
    town.bodies["c-0"].beats = True
    town.run(1.0)
    assert town.members == ["a-0", "b-0", "c-0"]


def test_a_stopped_candidate_is_not_let_in_until_it_runs() -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.run(3.0)
    town.caught_up("c-0")
    town.bodies["c-0"].beats = False
    town.say(WorkerStuck(worker="c-0", incarnation=1, node="c", state="T stopped"))
    town.kill("b-0")
    town.run(10.0)
    assert town.members == ["a-0"]
    town.say(WorkerStuck(worker="c-0", incarnation=1, node="c", state="R running"))
    town.bodies["c-0"].beats = True
    town.run(1.0)
    assert town.members == ["a-0", "c-0"]


def test_an_outage_of_the_broker_keeps_nobody_out() -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.run(3.0)
    town.muted = True
    town.run(5.0)
    town.caught_up("c-0")
    town.muted = False
    town.run(1.0)
    assert town.members == ["a-0", "b-0", "c-0"]


def test_more_than_may_be_active_come_in_as_spares() -> None:
    town = ring_of("a-0", "b-0", max_nodes=2)
    town.register("c-0")
    town.caught_up("c-0")
    town.run(1.0)
    assert town.roles == {"a-0": "active", "b-0": "active", "c-0": "spare"}
    town.kill("a-0")
    town.until(lambda: "a-0" not in town.members)
    assert town.members == ["c-0", "b-0"]


@pytest.mark.parametrize("end", [lambda town: town.stop(), lambda town: town.finished("a-0", 10)])
def test_nobody_comes_in_when_the_run_only_ends(end: Callable[[Town], object]) -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    end(town)
    town.caught_up("c-0")
    town.run(3.0)
    assert "c-0" not in town.members


@pytest.mark.parametrize("moment", ["learning", "caught up", "inside"])
def test_a_service_that_is_started_again_knows_who_has_caught_up(moment: str) -> None:
    town = ring_of("a-0", "b-0")

    def restart() -> None:
        view = town.replay()
        assert view.record == town.houses[0].view.record
        town.houses[0] = House(view)

    town.register("c-0")
    town.run(1.0)
    if moment == "learning":
        restart()
    town.run(3.0)
    assert len(town.worlds) == 1
    town.caught_up("c-0")
    if moment == "caught up":
        restart()
    town.run(1.0)
    if moment == "inside":
        restart()
    town.run(3.0)
    assert town.members == ["a-0", "b-0", "c-0"]
    assert len(town.worlds) == 2


def test_two_services_let_in_once() -> None:
    town = ring_of("a-0", "b-0", houses=2)
    town.register("c-0")
    town.run(1.0)
    town.caught_up("c-0")
    town.run(3.0)
    assert town.members == ["a-0", "b-0", "c-0"]
    assert len(town.worlds) == 2


def test_a_death_while_somebody_learns_has_a_trace_of_its_own() -> None:
    town = ring_of("a-0", "b-0", "x-0")
    town.register("c-0")
    town.run(1.0)
    town.kill("x-0")
    died = len(town.log)
    town.run(1.0)
    town.caught_up("c-0")
    caught_up = len(town.log)
    town.run(1.0)
    assert [w.added for w in town.worlds[1:]] == [(), ("c-0",)]
    assert town.traces[1:] == [f"00-{died}-b-01", f"00-{caught_up}-b-01"]


def test_scaling_is_one_planned_world_for_each_state_that_is_reached() -> None:
    town = ring_of("a-0", "b-0")
    town.learn = 0.3
    town.scale(4)
    town.until(lambda: bool(town.targets))
    for i, name in enumerate(("a-1", "b-1")):
        town.later(0.2 * i, lambda name=name: town.register(name) and None)
    town.run(10.0)
    assert sorted(town.members) == ["a-0", "a-1", "b-0", "b-1"]
    town.scale(2)
    town.run(0.1)
    for i, name in enumerate(("a-1", "b-1")):
        town.leaving(name)
        town.later(0.01 * i, lambda name=name: town.idle(name))
    town.run(10.0)
    assert sorted(town.members) == ["a-0", "b-0"]
    assert [w.planned for w in town.worlds] == [False, True, True]


def test_a_world_says_who_still_learns_and_nothing_else_does() -> None:
    town = ring_of("a-0", "b-0", "x-0")
    for name in ("c-0", "d-0"):
        town.register(name)
    town.kill("x-0")
    town.run(1.0)
    assert "; c-0 and d-0 still learn; 2 workers go on" in town.world.reason
    said = [e for _, e, _ in town.log if isinstance(e, WorldChanged)]
    assert len(said) == 2
