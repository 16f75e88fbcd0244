"""Who gets slots: first worlds, learners, leavers, spares, lost state; the plan log by compare-and-set; replay."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.core.events import (
    CheckpointRestored,
    DrainAsked,
    JobFinished,
    JobSubmitted,
    NodePulse,
    ShardsPlanned,
    Terms,
    WorkerCaughtUp,
    WorkerLeaving,
)
from reknit.core.plan import covers
from reknit.services.shards.decide import decide
from reknit.services.shards.view import View
from support.desk import Desk
from support.history import member, random_history, registered, world

TERMS = Terms(slots=8, micro_batch=2, samples=100, epochs=2, seed=1)


def desk(*workers: str, slots: int = 8, run: str = "r1") -> Desk[View]:
    terms = Terms(slots=slots, micro_batch=2, samples=100, epochs=2, seed=1)
    log: Desk[View] = Desk(decide, View("j"))
    log.publish(JobSubmitted(run=run, script="t.py"), *(registered(w, terms, run) for w in workers))
    return log


def counts(plan: ShardsPlanned) -> dict[str, int]:
    return {r.worker: r.end - r.first for r in plan.ranges}


def plans(log: Desk[View]) -> list[ShardsPlanned]:
    return log.events(ShardsPlanned)


def caught_up(worker: str, incarnation: int = 1) -> WorkerCaughtUp:
    return WorkerCaughtUp(worker=worker, incarnation=incarnation, generation=1, step=1)


def test_the_first_world_gives_slots_to_all_actives_in_ring_order() -> None:
    log = desk("b", "a", "s")
    log.publish(world(1, member("b"), member("a"), member("s", role="spare")))
    (plan,) = plans(log)
    assert (plan.generation, plan.version, plan.slots) == (1, 1, 8)
    assert [(r.worker, r.first, r.end) for r in plan.ranges] == [("b", 0, 4), ("a", 4, 8)]
    assert "s is spare" in plan.reason


def test_the_plan_follows_the_world_at_once_and_belongs_to_its_trace() -> None:
    log = desk("a")
    (out,) = log.publish(world(1, member("a")))
    assert out.trace == "t"
    assert out.expect_last == 0
    assert out.id.startswith("plan/j/1/1/")


def test_a_nodes_heartbeat_says_nothing_and_costs_nothing() -> None:
    log = desk("a", "b")
    log.publish(world(1, member("a"), member("b")))
    before = log.state
    log.pulse(NodePulse(node="n"))
    assert log.state is before


def test_a_joiner_is_a_learner_until_it_has_caught_up() -> None:
    log = desk("a", "b", "c")
    log.publish(world(1, member("a"), member("b")))
    log.publish(world(2, member("a"), member("b"), member("c"), added=("c",)))
    assert counts(plans(log)[-1]) == {"a": 4, "b": 4}
    assert "c is learning" in plans(log)[-1].reason
    log.publish(caught_up("c"))
    plan = plans(log)[-1]
    assert (plan.generation, plan.version) == (2, 2)
    assert counts(plan) == {"a": 3, "b": 3, "c": 2}
    assert plan.reason.startswith("c caught up")


def test_who_caught_up_outside_has_slots_from_the_first_plan_of_the_world_it_enters() -> None:
    log = desk("a", "b", "c")
    log.publish(world(1, member("a"), member("b")), caught_up("c"))
    assert len(plans(log)) == 1
    log.publish(world(2, member("a"), member("b"), member("c"), added=("c",), planned=True))
    (plan,) = plans(log)[1:]
    assert (plan.generation, plan.version) == (2, 1)
    assert counts(plan) == {"a": 3, "b": 3, "c": 2}


def test_a_spare_that_caught_up_outside_has_no_slots_until_it_is_promoted() -> None:
    log = desk("a", "b", "c")
    log.publish(world(1, member("a"), member("b")), caught_up("c"))
    log.publish(world(2, member("a"), member("b"), member("c", role="spare")))
    assert counts(plans(log)[-1]) == {"a": 4, "b": 4}
    assert "c is spare" in plans(log)[-1].reason
    log.publish(world(3, member("a"), member("c"), removed=("b",)))
    assert counts(plans(log)[-1]) == {"a": 4, "c": 4}


def test_candidates_wait_through_other_changes_of_the_world() -> None:
    log = desk("a", "b", "c", "d")
    log.publish(world(1, member("a"), member("b")), caught_up("c"))
    log.publish(world(2, member("a"), removed=("b",)), world(3, member("a"), member("c"), member("d")))
    assert counts(plans(log)[-1]) == {"a": 4, "c": 4}
    log.publish(caught_up("d"))
    assert counts(plans(log)[-1]) == {"a": 3, "c": 3, "d": 2}


@pytest.mark.parametrize("again", [1, 2])
def test_a_new_life_has_to_catch_up_itself_a_new_connection_has_not(again: int) -> None:
    log = desk("a", "b", "c")
    log.publish(world(1, member("a"), member("b")), caught_up("c"), registered("c", TERMS, incarnation=again))
    log.publish(world(2, member("a"), member("b"), member("c", incarnation=again)))
    with_c = {"a": 3, "b": 3, "c": 2}
    assert counts(plans(log)[-1]) == (with_c if again == 1 else {"a": 4, "b": 4})
    log.publish(caught_up("c", incarnation=again))
    assert counts(plans(log)[-1]) == with_c


def test_one_that_was_evicted_has_to_catch_up_again_under_the_same_number_too() -> None:
    log = desk("a", "b", "c")
    log.publish(world(1, member("a"), member("b")), world(2, member("a"), removed=("b",)), registered("b", TERMS))
    log.publish(world(3, member("a"), member("b")))
    assert counts(plans(log)[-1]) == {"a": 8}


def test_words_of_one_that_never_registered_or_belongs_to_another_run_count_for_nothing() -> None:
    log = desk("a", "b")
    log.publish(world(1, member("a"), member("b")), caught_up("x"), registered("y", TERMS, run="r0"), caught_up("y"))
    log.publish(world(2, member("a"), member("b"), member("x"), member("y")))
    assert counts(plans(log)[-1]) == {"a": 4, "b": 4}


def test_all_members_lost_while_one_outside_had_caught_up() -> None:
    log = desk("a", "b", "c", "d")
    log.publish(world(1, member("a"), member("b")), caught_up("c"))
    log.publish(world(2, status="paused"), world(3, member("c"), member("d")))
    assert counts(plans(log)[-1]) == {"c": 8}, "d learns from c"
    log.publish(caught_up("d"))
    assert counts(plans(log)[-1]) == {"c": 4, "d": 4}


def test_whoever_restored_has_the_state() -> None:
    log = desk("a", "b", "c", "d")
    log.publish(world(1, member("a"), member("b")), caught_up("c"))
    log.publish(world(2, status="paused"), world(3, member("c"), member("d")))
    log.publish(CheckpointRestored(run="r1", checkpoint="k", step=4, worker="d", generation=3))
    assert counts(plans(log)[-1]) == {"c": 4, "d": 4}


def test_a_learner_stays_one_over_changes_of_the_world() -> None:
    log = desk("a", "b", "c")
    log.publish(world(1, member("a"), member("b")), world(2, member("a"), member("b"), member("c")))
    log.publish(world(3, member("a"), member("c"), removed=("b",)))
    assert counts(plans(log)[-1]) == {"a": 8}
    log.publish(caught_up("c"))
    assert counts(plans(log)[-1]) == {"a": 4, "c": 4}


def test_a_restarted_worker_is_a_newcomer_whatever_its_name() -> None:
    log = desk("a", "b")
    log.publish(world(1, member("a"), member("b")))
    log.publish(world(2, member("a"), member("b", incarnation=2)))
    assert counts(plans(log)[-1]) == {"a": 8}
    log.publish(caught_up("b", incarnation=1))  # words of the dead
    assert counts(plans(log)[-1]) == {"a": 8}
    log.publish(caught_up("b", incarnation=2))
    assert counts(plans(log)[-1]) == {"a": 4, "b": 4}


def test_when_all_state_is_lost_all_members_are_eligible() -> None:
    log = desk("a", "b", "c", "d")
    log.publish(world(1, member("a"), member("b")), world(2, member("a"), member("c")))
    log.publish(world(3, member("c"), member("d"), removed=("a",)))  # c was still a learner
    assert counts(plans(log)[-1]) == {"c": 4, "d": 4}


def test_a_paused_world_has_no_plan_and_keeps_who_is_current() -> None:
    log = desk("a", "b", "c")
    log.publish(world(1, member("a"), member("b")), world(2, member("a"), status="paused", awaiting="1 node"))
    assert len(plans(log)) == 1
    log.publish(world(3, member("a"), member("c")))
    assert counts(plans(log)[-1]) == {"a": 8}


def test_who_waited_in_a_paused_world_has_the_state_no_sooner_than_the_others() -> None:
    log = desk("a", "b")
    log.publish(world(1, member("a"), status="paused"), world(2, member("a"), member("b")))
    assert counts(plans(log)[-1]) == {"a": 4, "b": 4}


def test_zero_members_are_legal() -> None:
    log = desk("a")
    log.publish(world(1, member("a")), world(2, status="paused"), world(3))
    log.tick(1)
    assert len(plans(log)) == 1
    log.publish(world(4, member("a", incarnation=2)))
    assert counts(plans(log)[-1]) == {"a": 8}


@pytest.mark.parametrize("how", ["worker", "node", "leaving", "listed"])
def test_who_leaves_gives_its_slots_back_and_all_slots_stay_covered(how: str) -> None:
    log = desk("n1-0", "n2-0")
    log.publish(world(1, member("n1-0"), member("n2-0")))
    if how == "listed":
        log.publish(world(2, member("n1-0"), member("n2-0"), leaving=("n2-0",)))
    else:
        said = {
            "worker": DrainAsked(target="n2-0"),
            "node": DrainAsked(target="n2"),
            "leaving": WorkerLeaving(worker="n2-0", incarnation=1, reason="SIGTERM"),
        }[how]
        log.publish(said)
    plan = plans(log)[-1]
    assert counts(plan) == {"n1-0": 8}
    assert "n2-0 is leaving" in plan.reason
    if how != "listed":
        assert (plan.generation, plan.version) == (1, 2)


def test_if_everybody_leaves_the_last_plan_stays() -> None:
    log = desk("a", "b")
    log.publish(world(1, member("a"), member("b")))
    log.publish(WorkerLeaving(worker="a", incarnation=1))
    assert counts(plans(log)[-1]) == {"b": 8}
    log.publish(WorkerLeaving(worker="b", incarnation=1))
    log.tick(20)
    assert len(plans(log)) == 2
    # a new world of leavers still has a plan: they compute until they are out
    log.publish(world(2, member("a"), member("b"), leaving=("a", "b")))
    assert counts(plans(log)[-1]) == {"a": 4, "b": 4}
    assert "nobody else can take the slots" in plans(log)[-1].reason


def test_a_drained_node_may_come_back_under_its_name() -> None:
    log = desk("n1-0", "n2-0")
    log.publish(world(1, member("n1-0"), member("n2-0")), DrainAsked(target="n2"))
    log.publish(world(2, member("n1-0")), registered("n2-0", TERMS, incarnation=9))
    log.publish(world(3, member("n1-0"), member("n2-0", incarnation=9)), caught_up("n2-0", 9))
    assert counts(plans(log)[-1]) == {"n1-0": 4, "n2-0": 4}


def test_more_workers_than_slots_are_told_as_spares() -> None:
    names = [f"w{i}" for i in range(5)]
    log = desk(*names, slots=2)
    log.publish(world(1, *(member(n) for n in names)))
    (plan,) = plans(log)
    assert counts(plan) == {"w0": 1, "w1": 1, "w2": 0, "w3": 0, "w4": 0}
    assert "3 workers have no slots: 5 workers, 2 slots; they are spares" in plan.reason


def test_a_spare_that_takes_the_place_of_a_dead_active_has_slots_at_once() -> None:
    log = desk("a", "b", "s")
    log.publish(world(1, member("a"), member("b"), member("s", role="spare")))
    log.publish(world(2, member("a"), member("s"), removed=("b",)))
    assert counts(plans(log)[-1]) == {"a": 4, "s": 4}


def test_if_only_learners_are_active_a_spare_that_holds_state_computes() -> None:
    log = desk("a", "s", "c")
    log.publish(world(1, member("a"), member("s", role="spare")))
    log.publish(world(2, member("c"), member("s", role="spare")))
    assert counts(plans(log)[-1]) == {"s": 8}


def test_terms_of_the_members_count_not_those_of_a_refused_worker() -> None:
    log = desk()
    log.publish(registered("x", Terms(slots=3, micro_batch=1, samples=1, epochs=1, seed=0)))
    log.publish(registered("a", TERMS), world(1, member("a")))
    assert plans(log)[-1].slots == 8


def test_a_second_run_begins_afresh_and_follows_the_plan_log() -> None:
    log = desk("a", "b")
    log.publish(world(1, member("a"), member("b")), WorkerLeaving(worker="b", incarnation=1))
    log.publish(JobFinished(run="r1", outcome="completed"))
    assert not log.tick(30)
    log.publish(JobSubmitted(run="r2", script="t.py"), registered("a", TERMS, "r2"), registered("b", TERMS, "r2"))
    log.publish(world(2, member("a"), member("b"), run="r2"))
    assert counts(plans(log)[-1]) == {"a": 4, "b": 4}
    assert (plans(log)[-1].generation, plans(log)[-1].version) == (2, 1)


def test_words_of_an_old_world_change_nothing() -> None:
    log = desk("a", "b")
    log.publish(world(2, member("a"), member("b")))
    before = len(plans(log))
    log.publish(world(1, member("a")))
    assert len(plans(log)) == before


def test_what_was_not_stored_is_asked_for_again_with_the_same_id() -> None:
    log = desk("a")
    log.lose = True
    (first,) = log.publish(world(1, member("a")))
    assert not log.tick(1.5)
    (again,) = log.tick(1.0)
    assert (first.id, first.event) == (again.id, again.event)
    log.lose = False
    log.tick(2.5)
    assert len(plans(log)) == 1
    assert not log.tick(20)


def test_a_service_killed_between_hearing_and_publishing_decides_again() -> None:
    log = desk("a", "b")
    log.lose = True
    log.publish(world(1, member("a"), member("b")))
    log.lose = False
    log.restart(View("j"))
    log.tick(0.25)
    assert len(plans(log)) == 1
    log.restart(View("j"))
    assert not log.tick(30)


def test_of_two_services_one_plan_counts() -> None:
    log = desk("a", "b")
    log.publish(world(1, member("a"), member("b")))
    other = log.replayed(View("j"))
    # the same log, another measured speed: the slower one's publication is refused by compare-and-set
    log.publish(WorkerLeaving(worker="b", incarnation=1))
    late = decide(other, _told(log, WorkerLeaving(worker="b", incarnation=1)))
    log._store(late.out[0])
    assert [(p.generation, p.version) for p in plans(log)] == [(1, 1), (1, 2)]


def _told(log: Desk[View], event: object) -> object:
    from reknit.core.service import Told

    return Told("j", event, log.now, seq=len(log.log), trace="t")


@given(seed=st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_in_random_histories_plans_cover_and_replay_gives_the_same_state(seed: int) -> None:
    rng = random.Random(seed)
    history = random_history(seed)
    log: Desk[View] = Desk(decide, View("j"))
    for event in history.events:
        log.publish(event)
        if rng.random() < 0.2:
            log.tick(0.5)
        if rng.random() < 0.05:
            log.restart(View("j"))
    for plan in plans(log):
        assert covers(plan.ranges, plan.slots)
        assert plan.slots == history.terms.slots
    numbers = [(p.generation, p.version) for p in plans(log)]
    assert numbers == sorted(set(numbers)), "each version once, in order"
    assert log.replayed(View("j")) == _without_memory(log.state)


def _without_memory(view: View) -> View:
    """The state less what is not on the log: measured speed, what was asked for."""
    import dataclasses

    fresh = View("j")
    return dataclasses.replace(view, pace=fresh.pace, asked=fresh.asked)
