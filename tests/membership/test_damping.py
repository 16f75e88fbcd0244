"""Nodes that come and go, and nodes whose workers fail again and again, are kept at the door."""

from __future__ import annotations

import pytest

from reknit.core.events import NodeHeld, WorkerStarted
from reknit.services.membership import damping
from reknit.services.membership.damping import Damper, came, door, failed, hold_of, kept, quarantine_of, returned
from support.town import EPOCH, House, Town

BAD = "exit code 1: RuntimeError: CUDA error: uncorrectable ECC error"


# ------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("flaps", "seconds"), [(0, 0), (1, 0), (3, 0), (4, 5), (5, 10), (6, 20), (7, 40), (8, 60), (9, 60), (10_000, 60)]
)
def test_the_hold_down_doubles_and_is_bounded(flaps: int, seconds: float) -> None:
    assert hold_of(flaps) == seconds


@pytest.mark.parametrize(("number", "seconds"), [(1, 60), (2, 120), (3, 240), (6, 1920), (7, 3600), (10_000, 3600)])
def test_quarantine_doubles_and_is_bounded(number: int, seconds: float) -> None:
    assert quarantine_of(number) == seconds


def test_three_comings_are_free_the_fourth_is_held_down_with_its_reason_and_its_end() -> None:
    damper = Damper()
    for at in (10.0, 20.0, 30.0):
        damper = came(damper, at)
        assert kept(damper, at) is None
    damper = came(damper, 40.0)
    found = kept(damper, 40.0)
    assert found is not None
    assert (found.kind, found.until, found.seconds, found.count) == ("flapping", 45.0, 5.0, 4)
    assert found.reason == "it came back 4 times, the last time too soon: held down for 5 s"
    assert kept(damper, 44.999) is not None
    assert kept(damper, 45.0) is None


def test_quiet_time_takes_flaps_off_one_by_one() -> None:
    damper = Damper()
    for at in range(6):
        damper = came(damper, float(at))
    assert damper.flaps == 6
    assert came(damper, 5.0 + 59.0).flaps == 7
    assert came(damper, 5.0 + 61.0).flaps == 6
    assert came(damper, 5.0 + 3 * 60.0).flaps == 4
    assert came(damper, 5.0 + 3600.0).flaps == 1, "as if it had never happened"
    assert came(damper, 5.0 + 3600.0).comings == 7, "how often it came is still told"


def test_workers_of_a_node_that_come_back_together_are_one_flap() -> None:
    damper = returned(returned(returned(Damper(), 10.0), 10.1), 11.9)
    assert damper.comings == 1
    assert returned(damper, 13.0).comings == 2


def test_a_node_that_goes_on_flapping_while_it_is_held_never_shortens_its_hold() -> None:
    damper = Damper()
    ends = []
    for i in range(12):
        damper = came(damper, i * 0.5)
        ends.append(damper.held_until)
    assert ends == sorted(ends)
    assert damper.held_until == 11 * 0.5 + 60.0


def test_three_failures_put_a_node_in_quarantine_and_it_heals_by_itself() -> None:
    dampers = failed(failed({}, "bad", 10.0, BAD), "bad", 100.0, BAD)
    assert door(dampers, 100.0) == {}
    dampers = failed(dampers, "bad", 200.0, BAD)
    found = door(dampers, 200.0)["bad"]
    assert (found.kind, found.until, found.count) == ("failing", 260.0, 3)
    assert found.reason == f"in quarantine for 60 s: 3 of its workers failed within 3 min, the last: {BAD}"
    assert door(dampers, 260.0) == {}


def test_the_next_quarantine_is_longer_until_there_was_peace() -> None:
    def thrice(dampers: damping.Mapping[str, Damper], at: float) -> dict[str, Damper]:
        for i in range(3):
            dampers = failed(dampers, "bad", at + i, BAD)
        return dict(dampers)

    once = thrice({}, 0.0)
    assert once["bad"].quarantined_until == 2.0 + 60.0
    twice = thrice(once, 100.0)
    assert twice["bad"].quarantined_until == 102.0 + 120.0
    later = thrice(twice, 222.0 + 2 * 3600.0)
    assert later["bad"].quarantines == 1


@pytest.mark.parametrize("text", sorted(damping.FROM_OUTSIDE))
def test_what_is_done_to_workers_from_outside_does_not_count(text: str) -> None:
    dampers: damping.Mapping[str, Damper] = {}
    for i in range(10):
        dampers = failed(dampers, "a", float(i), text)
    assert dampers == {}


def test_memory_and_crashes_count() -> None:
    for text in ("signal 9, out of memory", "signal 11", "exit code 1: ValueError: x"):
        dampers: damping.Mapping[str, Damper] = {}
        for i in range(3):
            dampers = failed(dampers, "a", float(i), text)
        assert set(door(dampers, 2.0)) == {"a"}, text


def test_what_fails_everywhere_is_not_the_nodes_fault() -> None:
    dampers: damping.Mapping[str, Damper] = {}
    for i in range(20):
        dampers = failed(dampers, ("a", "b")[i % 2], float(i), BAD)
    assert door(dampers, 20.0) == {}


def test_the_only_node_is_never_in_quarantine_but_what_it_did_counts_once_there_is_another() -> None:
    dampers: damping.Mapping[str, Damper] = {}
    for i in range(5):
        dampers = failed(dampers, "a", float(i), BAD, alone=True)
    assert door(dampers, 5.0) == {}
    assert dampers["a"].failed == 5
    dampers = failed(dampers, "a", 6.0, BAD)
    assert set(door(dampers, 6.0)) == {"a"}


def test_old_failures_do_not_count() -> None:
    dampers: damping.Mapping[str, Damper] = {}
    for i in range(10):
        dampers = failed(dampers, "a", i * 301.0, BAD)
    assert door(dampers, 10 * 301.0) == {}
    assert dampers["a"].failed == 10


# -------------------------------------------------------------------------------------------------------------- town


def flap(town: Town, node: str, incarnation: int, wait: float = 0.2) -> None:
    """The node's agent and its worker are killed and started again."""
    town.nodes[node] = False
    body = town.bodies[f"{node}-0"]
    town.kill(body.worker, silent=True)
    town.disconnect(body.client_id)
    town.disconnect(0, f"agent/{node}")
    town.run(wait)
    town.node(node)
    town.register(f"{node}-0", incarnation)


def town_of_two(**spec: int) -> Town:
    town = Town(min_nodes=1, max_nodes=2, last_call=0, **spec)
    town.begin("a-0", "b-0")
    town.committed(0)
    return town


def held(town: Town) -> list[NodeHeld]:
    return [e for _, e, _ in town.log if isinstance(e, NodeHeld)]


@pytest.mark.parametrize("wait", [0.02, 0.2, 1.0, 1.5, 3.0])
def test_a_flapping_node_is_held_and_comes_in_by_itself_in_the_end(wait: float) -> None:
    town = town_of_two()
    for i in range(6):
        flap(town, "b", i + 2, wait)
        town.run(1.0)
    assert town.members == ["a-0"], "it waits"
    assert {e.cause for e in held(town)} == {"flapping"}
    assert len({(e.until, e.node) for e in held(town)}) == len(held(town)), "each hold is said once"
    last = held(town)[-1]
    assert last.until - EPOCH > town.now
    assert "came back" in last.reason
    town.run(last.until - EPOCH - town.now - 0.05)
    assert town.members == ["a-0"]
    town.run(1.0)
    assert town.members == ["a-0", "b-0"]
    assert town.world.restarts == 0, "a node that comes and goes is no crash of a worker"


def test_a_world_that_comes_without_a_node_that_is_held_says_so() -> None:
    town = town_of_two(nproc_per_node=2)
    for i in range(5):
        flap(town, "b", i + 2)
        town.run(1.0)
    town.register("a-1")
    town.run(2.0)
    assert town.members == ["a-0", "a-1"]
    assert "b is kept out (it came back 5 times" in town.world.reason


def test_rather_with_a_node_that_is_held_than_not_at_all() -> None:
    town = town_of_two()
    for i in range(5):
        flap(town, "b", i + 2)
        town.run(1.0)
    assert town.members == ["a-0"]
    town.kill("a-0")
    town.run(4.0)
    assert town.members == ["b-0"]
    assert town.world.status == "running"


def test_a_script_that_fails_again_and_again_on_the_only_node_holds_nobody() -> None:
    town = Town(min_nodes=1, max_nodes=1, nproc_per_node=1, last_call=0)
    town.begin("a-0")
    for attempt in range(2, 6):
        assert town.end is None
        town.failed("a-0", "ValueError: bad sample", step=5)
        town.run(1.0)
        if town.end is None:
            town.register("a-0", attempt)
            town.run(2.0)
    assert town.end is not None
    assert town.end.reason.endswith("step 5 fails again and again: the script or its data is to blame")
    assert held(town) == []


def test_who_is_in_stays_in() -> None:
    """Hold-down and quarantine are for the door: a world of healthy workers is not changed for them."""
    town = Town(min_nodes=1, max_nodes=2, nproc_per_node=4, last_call=0)
    town.begin("a-0", "b-0", "b-1", "b-2", "b-3")
    town.committed(0)
    for i in range(3):
        town.failed("b-3", BAD, step=5 + 20 * i)
        town.run(1.0)
        town.committed(20 * (i + 1))
        town.register("b-3", i + 2)
        town.run(2.0)
    assert [e.cause for e in held(town)] == ["failing"]
    assert town.members == ["a-0", "b-0", "b-1", "b-2"], "the bad one waits, its neighbours train on"
    town.run(62.0)
    assert set(town.members) == {"a-0", "b-0", "b-1", "b-2", "b-3"}, "healed by itself"


def test_what_fails_at_the_door_costs_the_job_nothing_and_is_held_no_longer_for_it() -> None:
    town = Town(min_nodes=1, max_nodes=2, last_call=0, max_restarts=5)
    town.begin("a-0", "b-0")
    town.committed(0)
    for i in range(12):
        town.exited("b-0", code=1, stderr_tail="RuntimeError: bad node")
        town.register("b-0", i + 2)
        town.committed(i + 1)
        town.run(1.0)
    assert town.end is None, "the job goes on without it"
    assert town.world.restarts == 3
    assert [e.cause for e in held(town)] == ["failing"]
    town.run(62.0)
    assert town.members == ["a-0", "b-0"], "healed by itself"


def test_a_worker_that_hangs_again_and_again_counts_too() -> None:
    town = Town(min_nodes=1, max_nodes=2, last_call=0, stuck_after=5)
    town.begin("a-0", "b-0")
    town.committed(0)
    for i in range(3):
        town.bodies["a-0"].phase = "reduce"
        town.bodies["a-0"].in_phase = 0.0
        town.until(lambda: town.members == ["a-0"])
        town.bodies["a-0"].phase = "compute"
        town.bodies["b-0"].beats = False
        town.register("b-0", i + 2)
        town.run(2.0)
    assert [e.cause for e in held(town)] == ["failing"]
    assert "hung" in held(town)[0].reason
    assert town.members == ["a-0"]


def test_a_service_that_was_started_again_and_a_second_one_decide_the_same() -> None:
    town = town_of_two()
    town.houses.append(House(town.houses[0].view.__class__("job", "m1")))
    town.houses[1] = House(town.replay())
    for i in range(6):
        flap(town, "b", i + 2)
        town.run(1.0)
    assert town.replay().record == town.houses[0].view.record == town.houses[1].view.record
    assert [e.until for e in held(town)] == sorted({e.until for e in held(town)}), "said once, by whichever"
    end = held(town)[-1].until - EPOCH
    town.houses = [House(town.replay())]
    town.run(end - town.now - 0.2)
    assert town.members == ["a-0"]
    town.run(1.0)
    assert town.members == ["a-0", "b-0"]


def test_a_new_run_forgets() -> None:
    town = town_of_two()
    for i in range(5):
        flap(town, "b", i + 2)
        town.run(1.0)
    town.stop(at_once=True)
    town.run(7.0)
    assert town.end is not None
    town.submit("run2", max_nodes=2, last_call=0)
    town.node("a")
    town.node("b")
    town.register("a-0", 20)
    town.register("b-0", 20)
    town.run(2.0)
    assert set(town.members) == {"a-0", "b-0"}


@pytest.mark.parametrize("newer", [0, 1], ids=["the same life", "a new life"])
def test_a_process_that_is_evicted_again_and_again_and_comes_back_is_a_flap_each_time(newer: int) -> None:
    town = Town(min_nodes=1, max_nodes=3)
    town.begin("a-0", "b-0", "c-0")
    town.committed(3)
    for count in range(1, 5):
        town.run(3.0)
        body = town.bodies["b-0"]
        body.beats = False
        body.dial = "no answer"
        town.until(lambda: "b-0" not in town.members)
        body.beats, body.dial = True, "open"
        town.run(0.3)
        town.again("b-0", incarnation=body.incarnation + newer)
        assert town.houses[0].view.record.dampers["b"].flaps == count
        town.caught_up("b-0")
        took = town.until(lambda: "b-0" in town.members)
        assert (took > 4.0) == (count > 3)
    assert [e.cause for e in held(town)] == ["flapping"]


def test_starting_processes_is_no_flap() -> None:
    town = town_of_two()
    for i in range(20):
        town.say(WorkerStarted(worker="b-1", incarnation=i + 1, node="b", pid=i + 1))
    assert town.houses[0].view.record.dampers == {}


def test_a_broker_whose_clock_is_set_back_holds_nobody_for_longer_than_the_longest() -> None:
    """Set back or forward, by somebody or by another broker's taking over: no negative time, nobody put out."""
    for jump in (-3600.0, 3600.0):
        town = town_of_two()
        for i in range(5):
            flap(town, "b", i + 2)
            town.run(1.0)
        town.epoch += jump
        town.run(1.0)
        assert set(town.members) == {"a-0", "b-0"}
        flap(town, "b", 9)
        town.run(damping.LONGEST_HOLD + 2.0)
        assert set(town.members) == {"a-0", "b-0"}
        assert town.replay().record == town.houses[0].view.record
