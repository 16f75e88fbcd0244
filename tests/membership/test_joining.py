"""Who comes in, when, where; who is refused and why."""

from __future__ import annotations

import msgspec
import pytest

from reknit.core.events import JobInexact
from support.town import TERMS, Town


def ring_of(*workers: str, **spec: object) -> Town:
    town = Town(**{"min_nodes": 1, "max_nodes": 8, "last_call": 0.5, **spec})
    for worker in workers:
        town.register(worker)
    town.run(2.0)
    town.committed(3)
    return town


def test_a_joiner_comes_to_the_tail() -> None:
    town = ring_of("b-0", "c-0")
    town.register("a-0")
    assert 0.09 < town.until(lambda: "a-0" in town.members) < 0.15
    assert town.members == ["b-0", "c-0", "a-0"]
    assert town.world.added == ("a-0",)
    assert town.world.reason == "a-0 joined; 3 workers go on"
    assert [(e.about, e.source) for e in town.world.evidence] == [("a-0", "join")]


def test_many_joiners_at_once_are_one_change() -> None:
    town = ring_of("a-0")
    for i, name in enumerate("bcdefg"):
        town.later(0.015 * i, lambda name=name: town.register(f"{name}-0") and None)
    town.run(3.0)
    assert len(town.worlds) == 2
    assert sorted(town.members) == [f"{n}-0" for n in "abcdefg"]


def test_joins_wait_longer_right_after_a_change() -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.until(lambda: "c-0" in town.members)
    town.register("d-0")
    assert 0.25 < town.until(lambda: "d-0" in town.members) < 0.45


def test_a_death_takes_waiting_joiners_along() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.register("d-0")
    town.kill("b-0")
    town.run(1.0)
    assert len(town.worlds) == 2
    assert town.members == ["a-0", "c-0", "d-0"]
    assert town.world.reason == "b-0 died: its agent reaped it (signal 9); d-0 joined; 3 workers go on"


def test_a_member_that_registers_once_more_changes_nothing() -> None:
    town = ring_of("a-0", "b-0")
    town.again("a-0", client_id=777)
    town.run(2.0)
    assert len(town.worlds) == 1
    assert not town.refusals
    town.disconnect(777)
    town.run(0.1)
    assert [d.worker for d in town.dials] == ["a-0"], "its new connection is known"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slots": 4}, "slots differs: the job has 8, this worker has 4"),
        ({"parameters": ("w float32 5x2",)}, "tensor 0 differs: the job has 'w float32 4x2', this worker has"),
        ({"numerics": {"t": "2"}}, "numerics.t differs"),
    ],
)
def test_other_terms_are_refused_by_name_and_nobody_loses_a_step(changes: dict[str, object], said: str) -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0", terms=msgspec.structs.replace(TERMS, **changes))
    town.run(5.0)
    assert [(r.worker, r.incarnation) for r in town.refusals] == [("c-0", 1)]
    assert said in town.refusals[0].reason
    assert len(town.worlds) == 1


@pytest.mark.parametrize("incarnation", [3, 5])
def test_a_second_claimant_of_a_living_id_is_refused_by_name(incarnation: int) -> None:
    town = ring_of("a-0")
    town.register("b-0", 5)
    town.run(1.0)
    first = town.bodies["b-0"]
    second = town.start("b-0", incarnation, "b")
    town.bodies["b-0"] = second
    town.again("b-0", pid=4711)
    town.run(1.0)
    assert town.refusals[0].incarnation == incarnation
    assert f"the id b-0 is taken by pid {first.pid} on b at {first.address}" in town.refusals[0].reason
    assert [m.pid for m in town.world.members if m.worker == "b-0"] == [first.pid]


def test_a_second_claimant_from_another_node_is_refused_however_new_it_is() -> None:
    town = ring_of("a-0", "b-0")
    first = town.bodies["b-0"]
    second = town.start("b-0", 9, "c")
    town.bodies["b-0"] = second
    town.again("b-0")
    town.run(1.0)
    assert f"the id b-0 is taken by pid {first.pid} on b at {first.address}" in town.refusals[0].reason
    assert [m.pid for m in town.world.members if m.worker == "b-0"] == [first.pid]
    assert len(town.worlds) == 1


def test_a_higher_incarnation_replaces_the_one_before() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.register("b-0", 2)
    town.run(1.0)
    assert town.members == ["a-0", "c-0", "b-0"]
    assert [m.incarnation for m in town.world.members] == [1, 1, 2]
    assert (town.world.removed, town.world.added) == (("b-0",), ("b-0",))
    assert "b-0 died: its agent started it anew" in town.world.reason


def test_a_dead_id_may_come_back_at_once_and_elsewhere_even_with_a_clock_set_back() -> None:
    town = ring_of("a-0")
    town.register("b-0", 1000)
    town.run(1.0)
    town.kill("b-0")
    town.run(1.0)
    body = town.register("b-0", 7)
    town.run(1.0)
    assert town.world.members[-1].address == body.address
    assert not town.refusals


def test_a_life_that_ended_does_not_come_back() -> None:
    town = ring_of("a-0", "b-0")
    town.kill("b-0")
    town.run(1.0)
    town.again("b-0")
    town.run(1.0)
    assert town.members == ["a-0"]


def test_nor_does_another_process_under_its_incarnation() -> None:
    town = ring_of("a-0", "b-0")
    town.kill("b-0")
    town.run(1.0)
    town.again("b-0", pid=4711, address="127.0.0.1:9")
    town.run(1.0)
    assert town.members == ["a-0"]
    assert not town.refusals


def test_a_new_id_at_an_old_address_retires_the_old_entry() -> None:
    town = ring_of("a-0", "b-0")
    address = town.bodies["b-0"].address
    town.bodies["b-0"].beats = False
    town.register("b2-0", address=address)
    town.run(1.0)
    assert town.members == ["a-0", "b2-0"]
    assert "its address" in town.world.reason
    assert all(len(w.members) <= 2 for w in town.worlds)


def test_a_worker_of_another_run_is_refused() -> None:
    town = ring_of("a-0")
    town.register("b-0", run="yesterday")
    town.run(1.0)
    assert town.refusals[0].reason == "it belongs to run yesterday, the job is in run run1"


def test_flapping_a_node_never_disturbs_the_others() -> None:
    town = ring_of("a-0", "b-0")
    for round_ in range(2, 12):
        town.kill("b-0")
        town.run([0.05, 0.2, 1.0, 2.0][round_ % 4])
        town.register("b-0", round_)
        town.run([0.05, 0.5, 1.0, 3.0][round_ % 4])
        assert all("a-0" in [m.worker for m in w.members] for w in town.worlds)
    town.run(2.0)
    assert town.members == ["a-0", "b-0"]
    assert town.world.restarts == 10


def test_a_joiner_that_dies_before_it_is_in_leaves_no_trace() -> None:
    town = ring_of("a-0")
    town.register("b-0")
    town.kill("b-0")
    town.run(2.0)
    assert len(town.worlds) == 1


def test_the_agents_word_about_a_new_process_is_enough() -> None:
    """An agent that was killed with its workers and started again knows nothing of the old ones."""
    town = ring_of("a-0", "b-0")
    town.bodies["b-0"].beats = False
    town.start("b-0", 2)
    town.run(0.5)
    assert town.members == ["a-0"]
    assert "its agent started it anew" in town.world.reason


def test_an_agent_that_is_started_anew_has_no_worker_of_the_one_before() -> None:
    """A launcher was killed with all its processes, and the same command is given again: nobody goes on meanwhile."""
    town = ring_of("a-0", "a-1")
    for worker in ("a-0", "a-1"):
        town.bodies[worker].beats = False
    town.node("a", nproc=2)
    town.start("a-0", 2)
    town.run(0.5)
    assert (town.world.status, town.members) == ("paused", [])
    assert town.world.reason == "a-0 and a-1 died: the agent of a was started anew; nobody is left"
    town.start("a-1", 2)
    for worker in ("a-0", "a-1"):
        town.register(worker, 2)
    town.run(2.0)
    assert (town.world.status, sorted(town.members)) == ("running", ["a-0", "a-1"])
    assert len(town.worlds) == 3


def inexact(town: Town) -> list[JobInexact]:
    return [event for _, event, _ in town.log if isinstance(event, JobInexact)]


def test_with_relaxed_numerics_it_is_let_in_and_the_job_is_told_once_that_it_is_not_exact() -> None:
    town = ring_of("a-0", numerics="relaxed")
    town.register("b-0", terms=msgspec.structs.replace(TERMS, numerics={"t": "2"}))
    town.register("c-0")
    town.until(lambda: {"b-0", "c-0"} <= set(town.members))
    town.run(3.0)
    (told,) = inexact(town)
    assert (told.worker, told.node, told.difference) == (
        "b-0",
        "b",
        "numerics.t differs: the job has 1, this worker has 2",
    )
    assert not town.refusals
    town.register("b-0", incarnation=2, terms=msgspec.structs.replace(TERMS, canary="b" * 16))
    town.run(3.0)
    assert [(e.worker, e.incarnation) for e in inexact(town)] == [("b-0", 1)], "a canary alone, where the job has none"


def test_what_cannot_work_is_refused_also_with_relaxed_numerics() -> None:
    town = ring_of("a-0", numerics="relaxed")
    town.register("b-0", terms=msgspec.structs.replace(TERMS, slots=3, numerics={"t": "2"}))
    town.run(2.0)
    assert town.members == ["a-0"]
    (refused,) = town.refusals
    assert refused.reason == "slots differs: the job has 8, this worker has 3"
    assert inexact(town) == []
