"""How runs end: completed, failed with the root first, and begun again."""

from __future__ import annotations

import pytest

from reknit.core.events import WorkerUnreachable
from support.town import Town


def ring_of(*workers: str, began: bool = True, **spec: object) -> Town:
    town = Town(**{"min_nodes": 1, "max_nodes": 8, "last_call": 0.5, **spec})
    for worker in workers:
        town.register(worker)
    town.run(2.0)
    if began:
        town.committed(3)
    return town


# ------------------------------------------------------------------------------------------------------- completed


def test_a_run_is_completed_when_all_have_finished() -> None:
    town = ring_of("a-0", "b-0")
    town.finished("a-0", 10)
    town.run(5.0)
    assert town.end is None
    assert len(town.worlds) == 1, "finishing needs no new ring"
    town.finished("b-0", 10)
    town.run(0.1)
    assert town.end is not None
    assert (town.end.outcome, town.end.state_hash, town.end.run) == ("completed", "h", "run1")
    assert (town.world.status, town.members) == ("finished", ["a-0", "b-0"])
    assert town.world.reason == "the run completed: 2 workers finished at step 10"
    town.exited("a-0", code=0, expected=True)
    town.run(5.0)
    assert len(town.worlds) == 2


def test_those_who_die_after_another_finished_are_not_waited_for() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.finished("a-0", 10)
    town.kill("b-0")
    town.run(0.5)
    assert town.members == ["c-0"], "the last one must not wait for the dead in its closing round"
    town.finished("c-0", 10)
    town.run(0.5)
    assert town.end is not None
    assert town.end.outcome == "completed"


def test_one_who_finished_in_the_ring_before_is_not_linked_with() -> None:
    """Its word was still on its way when the world with it was made: its engine is over, nothing would ever come."""
    town = ring_of("a-0", "b-0", "c-0")
    town.kill("c-0")
    town.run(0.05)
    assert town.members == ["a-0", "b-0"]
    town.finished("a-0", 10, generation=1)
    town.run(0.5)
    assert town.members == ["b-0"]
    town.finished("b-0", 10)
    town.run(0.5)
    assert town.end is not None
    assert town.end.outcome == "completed"


def test_a_death_as_the_last_event_completes_the_run() -> None:
    town = ring_of("a-0", "b-0")
    town.finished("a-0", 10)
    town.kill("b-0")
    town.run(0.5)
    assert town.end is not None
    assert town.end.outcome == "completed"


def test_nobody_is_let_in_at_the_end() -> None:
    town = ring_of("a-0", "b-0")
    town.finished("a-0", 10)
    town.register("c-0")
    town.run(2.0)
    assert len(town.worlds) == 1


def test_an_early_end_of_the_loop_is_an_end_too() -> None:
    town = ring_of("a-0", "b-0")
    town.finished("a-0", 4)
    town.finished("b-0", 4)
    town.run(0.5)
    assert town.end is not None
    assert town.end.outcome == "completed"


def test_a_leaver_that_reached_the_last_step_completes_the_run() -> None:
    town = ring_of("a-0")
    town.leaving("a-0")
    town.finished("a-0", 10)
    town.run(0.5)
    assert town.end is not None
    assert town.end.outcome == "completed"


def test_scripts_that_never_join_and_end_well_complete_the_run() -> None:
    town = Town(max_nodes=1, nproc_per_node=2)
    town.node("a", 2)
    for name in ("a-0", "a-1"):
        town.bodies[name] = town.start(name)
    town.exited("a-0", code=0)
    town.run(5.0)
    assert town.end is None
    town.exited("a-1", code=0)
    town.run(0.5)
    assert town.end is not None
    assert town.end.outcome == "completed"
    assert not town.worlds
    assert "without joining the ring" in town.end.reason


def test_all_nodes_of_the_minimum_must_end_well() -> None:
    town = Town(min_nodes=2, max_nodes=2)
    town.node("a")
    town.bodies["a-0"] = town.start("a-0")
    town.exited("a-0", code=0)
    town.run(5.0)
    assert town.end is None
    town.node("b")
    town.bodies["b-0"] = town.start("b-0")
    town.exited("b-0", code=0)
    town.run(0.5)
    assert town.end is not None


# ---------------------------------------------------------------------------------------------------------- failed


def test_a_script_that_fails_before_the_first_step_is_not_tried_again() -> None:
    town = ring_of("a-0", "b-0", began=False)
    town.failed("b-0", "ValueError: boom", 0)
    town.run(0.5)
    assert town.end is not None
    assert (town.end.outcome, town.end.root_worker) == ("failed", "b-0")
    assert town.end.reason == "b-0: ValueError: boom; no step was committed before, so it is not tried again"


@pytest.mark.parametrize("code", [1, 2, 127])
def test_a_script_that_never_gets_to_register_fails_the_run(code: int) -> None:
    town = Town(max_nodes=1, nproc_per_node=2)
    for name in ("a-0", "a-1"):
        town.bodies[name] = town.start(name)
    town.exited("a-0", code=code, stderr_tail="Traceback\n  x\nImportError: no module named y\n", log="/l/a-0.log")
    town.run(0.5)
    assert town.end is not None
    assert town.end.reason.startswith(f"a-0: exit code {code}: ImportError: no module named y (log: /l/a-0.log)")


def test_a_signal_before_the_first_step_is_tried_again() -> None:
    town = Town(max_nodes=1, nproc_per_node=1)
    town.bodies["a-0"] = town.start("a-0")
    town.exited("a-0", code=-9)
    town.run(2.0)
    assert town.end is None
    town.register("a-0", 2)
    town.run(1.0)
    assert town.members == ["a-0"]


def test_a_crash_again_and_again_before_the_first_step_fails_the_run() -> None:
    town = ring_of("a-0", "b-0", began=False)
    for incarnation in range(2, 6):
        assert town.end is None
        town.exited("b-0", code=-11)
        town.run(0.5)
        if town.end is None:
            town.register("b-0", incarnation)
            town.run(1.0)
    assert town.end is not None
    assert town.end.reason == "b-0: signal 11; the same after each of 3 restarts, before the first step was committed"


def test_kills_from_outside_say_nothing_against_the_script() -> None:
    town = ring_of("a-0", "b-0", began=False)
    for incarnation in range(2, 12):
        town.kill("b-0")
        town.run(0.5)
        town.register("b-0", incarnation)
        town.run(1.0)
    assert town.end is None


def test_a_script_that_raises_once_later_is_started_again() -> None:
    town = ring_of("a-0", "b-0")
    town.failed("b-0", step=4)
    town.run(0.5)
    assert (town.end, town.members) == (None, ["a-0"])
    assert "its script raised ValueError: boom" in town.world.reason
    town.register("b-0", 2)
    town.run(1.0)
    assert town.members == ["a-0", "b-0"]
    assert town.world.restarts == 1


def test_a_failure_after_steps_whose_record_is_still_on_its_way_is_no_failure_at_the_start() -> None:
    town = ring_of("a-0", "b-0", began=False)
    town.failed("b-0", step=5)
    town.run(0.5)
    assert town.end is None


def test_poison_ends_the_run_with_its_traceback() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    for attempt in range(2, 6):
        assert town.end is None
        town.failed("b-0", "ValueError: bad sample", 5)
        town.run(0.5)
        if town.end is None:
            town.register("b-0", attempt)
            town.run(1.0)
    assert town.end is not None
    assert (
        town.end.reason
        == "b-0: ValueError: bad sample; step 5 fails again and again: the script or its data is to blame"
    )


def test_poison_that_wanders_from_worker_to_worker_is_poison() -> None:
    names = [f"{n}-0" for n in "abcdef"]
    town = ring_of(*names)
    for name in names[:4]:
        town.failed(name, "ValueError: bad sample", 5)
        town.run(0.3)
    assert town.end is not None
    assert town.end.root_worker == "a-0"


def test_an_error_that_is_heard_after_the_death_is_its_reason_and_counts_as_any_other() -> None:
    """Its door was found shut before its own word came through."""
    town = ring_of("a-0", "b-0")
    body = town.bodies["b-0"]
    town.say(WorkerUnreachable(worker="b-0", incarnation=body.incarnation, address=body.address, refused=True))
    town.failed("b-0", "ValueError: boom", 5)
    town.run(0.5)
    record = town.houses[0].view.record
    assert [(f.worker, f.text, f.raised) for f in record.failures] == [("b-0", "ValueError: boom", True)]
    assert record.endings[("b-0", 1)].evidence.detail == "its script raised ValueError: boom"
    assert record.restarts == 1


def test_failures_far_apart_are_no_poison() -> None:
    town = ring_of("a-0", "b-0")
    for attempt in range(2, 10):
        town.failed("b-0", step=5 + 20 * attempt)
        town.run(0.5)
        town.register("b-0", attempt)
        town.run(1.0)
        town.committed(5 + 20 * attempt)
    assert town.end is None


def test_the_same_step_failing_again_after_much_progress_is_no_poison() -> None:
    town = ring_of("a-0", "b-0")
    for attempt in range(2, 8):
        town.failed("b-0", step=5)
        town.run(0.5)
        town.register("b-0", attempt)
        town.run(1.0)
        town.committed(20 * attempt)
    assert town.end is None


def test_the_budget_is_one_for_the_whole_job() -> None:
    town = ring_of("a-0", "b-0", "c-0", max_restarts=3)
    for number, name in enumerate(("a-0", "b-0", "c-0", "a-0"), 1):
        assert town.end is None
        town.failed(name, f"RuntimeError: {number}", 10 * number)
        town.run(0.2)
        assert town.houses[0].view.record.restarts == number
        town.committed(10 * number + 5)
        if number < 4:
            assert town.world.restarts == number
            town.register(name, number + 10)
            town.run(1.0)
    assert town.end is not None
    assert town.end.outcome == "failed"
    assert "restart budget spent: 4 unexpected exits, 3 allowed" in town.end.reason
    assert town.end.root_worker == "a-0"


@pytest.mark.parametrize("budget", [0, 1])
def test_a_small_budget_is_kept(budget: int) -> None:
    town = ring_of("a-0", "b-0", max_restarts=budget)
    for number in range(budget + 1):
        assert town.end is None
        town.kill("b-0")
        town.run(0.5)
        if number < budget:
            town.register("b-0", number + 2)
            town.run(1.0)
    assert town.end is not None


def test_the_root_is_named_and_not_its_echo() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0", began=False)
    for name, error in (
        ("a-0", "ConnectionResetError: [Errno 104] Connection reset by peer"),
        ("d-0", "ValueError: boom"),
        ("b-0", "reknit.core.errors.RunFailed: the run is over"),
    ):
        town.failed(name, error, 0)
    town.run(0.5)
    assert town.end is not None
    assert town.end.root_worker == "d-0"
    assert town.end.reason.startswith("d-0: ValueError: boom")


def test_a_broken_joiner_does_not_end_a_run_that_goes_well() -> None:
    town = ring_of("a-0", "b-0")
    body = town.start("c-0")
    town.bodies["c-0"] = body
    town.exited("c-0", code=1, stderr_tail="SyntaxError: bad")
    town.run(2.0)
    assert (town.end, town.members) == (None, ["a-0", "b-0"])


def test_a_run_that_every_node_gave_up_has_failed() -> None:
    town = ring_of("a-0", "b-0")
    for name in ("a-0", "b-0"):
        town.exited(name, code=3, stderr_tail="OSError: data is gone")
        town.run(0.3)
        town.node_left(name[0])
    town.run(0.5)
    assert town.end is not None
    assert (town.end.outcome, town.end.root_worker) == ("failed", "a-0")
    assert "OSError: data is gone" in town.end.reason


# ------------------------------------------------------------------------------------------------------ once more


def test_a_second_run_of_the_job_starts_clean_and_generations_go_on() -> None:
    town = ring_of("a-0", "b-0", max_restarts=1)
    town.kill("b-0")
    town.run(0.5)
    town.finished("a-0", 10)
    town.run(0.5)
    assert town.end is not None
    last = town.world.generation
    town.submit("run2", max_nodes=2, last_call=0.5)
    town.run(1.0)
    assert town.houses[0].view.record.restarts == 0
    town.node("a")
    town.register("a-0", 50)
    town.run(2.0)
    assert (town.world.run, town.world.status, town.members) == ("run2", "running", ["a-0"])
    assert town.world.generation == last + 1
    assert town.world.removed == ()


def test_late_news_of_the_run_before_is_not_this_runs() -> None:
    town = ring_of("a-0", "b-0")
    town.stop(at_once=True)
    town.run(6.0)
    assert town.end is not None
    town.submit("run2", max_nodes=2)
    town.exited("a-0", code=1)
    town.failed("b-0")
    town.run(1.0)
    assert [e.run for _, e, _ in town.log if type(e).__name__ == "JobFinished"] == ["run1"]
    assert town.houses[0].view.record.restarts == 0


def test_a_submission_while_a_run_lives_is_ignored() -> None:
    town = ring_of("a-0", "b-0")
    town.submit("run2")
    town.run(1.0)
    assert town.houses[0].view.record.run == "run1"
    assert len(town.worlds) == 1


def test_the_root_is_the_error_not_the_hint_behind_it() -> None:
    town = ring_of("a-0", began=False)
    town.failed("a-0", "reknit.StateError: it differs\nhint: start it anew")
    town.run(0.5)
    assert town.end is not None
    assert "StateError: it differs" in town.end.reason
