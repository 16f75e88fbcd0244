"""Each rule: what raises it, what it says, what clears it, and what it must not mistake for it."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.core.events import (
    AgentJoined,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRequested,
    EvaluationDiffers,
    JobFinished,
    JobInexact,
    NodeHeld,
    SlotNotFinite,
    StepNotFinite,
    WorkerCaughtUp,
    WorkerDiverged,
    WorkerExited,
    WorkerFailed,
    WorkerLeaving,
    WorkerStarted,
    WorkerStuck,
)
from reknit.services.monitor.rules import RULES
from reknit.services.monitor.rules.stragglers import median_without
from support.history import registered
from support.watched import TERMS, Watched


def exited(worker: str, incarnation: int = 1, **more: object) -> WorkerExited:
    return WorkerExited(worker=worker, incarnation=incarnation, node="n", pid=1, **more)


def test_a_calm_run_has_no_alert() -> None:
    job = Watched("w1-0", "w2-0", "w3-0")
    job.beat(120)
    job.publish(JobFinished(run="r1", outcome="completed"))
    job.tick(30)
    assert job.told() == []


def test_a_lost_worker_is_told_until_it_is_back() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    job.publish(exited("w2-0", signal="SIGKILL", code=-9))
    job.change("w1-0", removed=("w2-0",), reason="w2-0 died: its agent reaped it (signal 9)")
    assert ("worker-lost", "w2-0", "raised") in job.told()
    assert job.alert("worker-lost").reason == "w2-0 died: its agent reaped it (signal 9)"
    job.beat(5)
    job.incarnations["w2-0"] = 2
    job.publish(WorkerStarted(worker="w2-0", incarnation=2, node="w2", pid=2), registered("w2-0", TERMS, incarnation=2))
    job.change("w1-0", "w2-0", added=("w2-0",))
    assert ("worker-lost", "w2-0", "cleared") in job.told()
    assert ("worker-joined", "w2-0", "raised") in job.told()
    job.publish(WorkerCaughtUp(worker="w2-0", incarnation=2, generation=3, step=20))
    assert ("worker-joined", "w2-0", "cleared") in job.told()
    assert job.told("warning") == []


def test_a_node_that_is_kept_out_is_told_until_the_time_is_over() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    job.publish(AgentJoined(node="w2", run="r1", host="h", pid=1, nproc=1))
    until = job.now + 12.0
    reason = "it came back 4 times, the last time too soon: held down for 12 s"
    job.publish(NodeHeld(node="w2", run="r1", cause="flapping", until=until, seconds=12.0, count=4, reason=reason))
    job.beat(1)
    assert job.told("warning") == [("node-held", "w2", "raised")]
    assert job.alert("node-held").reason == f"w2: {reason}"
    job.beat(10)
    assert len(job.told("warning")) == 1
    job.beat(10)
    assert job.told("warning")[-1] == ("node-held", "w2", "cleared")


@pytest.mark.parametrize("beside", [True, False])
def test_one_that_does_not_catch_up_is_said_after_a_while(beside: bool) -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    job.publish(registered("w3-0", TERMS))
    if not beside:
        job.change("w1-0", "w2-0", "w3-0")
    assert job.told()[-1 if beside else -2] == ("worker-joined", "w3-0", "raised")
    job.beat(115)
    assert job.told("warning") == []
    job.beat(10)
    assert job.told("warning") == [("not-caught-up", "w3-0", "raised")]
    assert job.alert("not-caught-up").reason.startswith("w3-0 on w3 has not caught up within 120 s: ")
    job.publish(WorkerCaughtUp(worker="w3-0", incarnation=1, generation=1, step=9))
    assert ("not-caught-up", "w3-0", "cleared") in job.told("warning")
    assert ("worker-joined", "w3-0", "cleared") in job.told()


def test_one_that_dies_while_it_learns_is_no_late_learner() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    job.publish(registered("w3-0", TERMS))
    job.beat(60)
    job.publish(exited("w3-0", code=-9))
    job.beat(120)
    assert not [a for a in job.told() if a[0] == "not-caught-up"]


def test_who_is_put_out_because_the_ring_is_split_is_told_until_it_is_back() -> None:
    job = Watched("w1-0", "w2-0", "w3-0", "w4-0")
    job.beat(5)
    reason = "no order of the ring avoids the links that cannot be made: w3-0 and w4-0 are put out"
    job.change("w1-0", "w2-0", removed=("w3-0", "w4-0"), apart=("w3-0", "w4-0"), reason=reason)
    assert {a[1] for a in job.told("warning") if a[0] == "ring-split"} == {"w3-0", "w4-0"}
    assert reason in job.alert("ring-split").reason
    job.beat(5)
    job.change("w1-0", "w2-0", "w3-0", "w4-0", added=("w3-0", "w4-0"))
    assert {a[1] for a in job.told() if a[0] == "ring-split" and a[2] == "cleared"} == {"w3-0", "w4-0"}


def test_a_worker_that_leaves_politely_is_not_lost() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    job.publish(WorkerLeaving(worker="w2-0", incarnation=1, reason="drained"))
    job.change("w1-0", removed=("w2-0",))
    job.publish(exited("w2-0", expected=True))
    job.beat(20)
    assert [a for a in job.told() if a[0] == "worker-lost"] == []
    assert job.told("warning") == []


def test_a_change_of_the_world_is_over_with_the_first_step_and_a_long_one_is_a_warning() -> None:
    job = Watched("w1-0", "w2-0", "w3-0")
    job.beat(5)
    job.change("w1-0", "w2-0", removed=("w3-0",), reason="w3-0 died")
    assert job.alert("worker-lost").reason == "w3-0 died"
    assert "world-changed" not in {name for name, _, _ in job.told()}, "one fact, one alert"
    job.beat(1)
    job.change("w2-0", "w1-0", reason="the link broke")
    assert job.alert("world-changed").reason == "generation 3: the link broke"
    job.beat(0.25)
    job.beat(0.25)
    assert ("world-changed", "j", "cleared") in job.told()
    job.change("w1-0", removed=("w2-0",), reason="w2-0 died")
    job.beat(9, steps=0)
    assert job.told("warning") == []
    job.beat(3, steps=0)
    assert job.told("warning") == [("not-mended", "j", "raised")]
    job.beat(1)
    assert job.told("warning")[-1] == ("not-mended", "j", "cleared")


def test_below_the_minimum_is_critical_and_over_when_it_runs() -> None:
    job = Watched("w1-0", "w2-0", min_nodes=2)
    job.beat(5)
    job.change("w1-0", status="paused", removed=("w2-0",), awaiting="1 more node")
    assert ("job-below-min", "j", "raised") in job.told("critical")
    assert job.alert("job-below-min").reason == "paused: waiting for 1 more node"
    job.beat(60, steps=0)
    assert len(job.told("critical")) == 1
    job.change("w1-0", "w2-0")
    assert job.told("critical")[-1] == ("job-below-min", "j", "cleared")


def test_a_frozen_process_is_told_once_and_over_when_it_runs_again() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(6)
    job.publish(WorkerStuck(worker="w2-0", incarnation=1, node="w2", state="T stopped", seconds=0.6))
    assert job.told("warning") == [("worker-stuck", "w2-0", "raised")]
    assert "does not run: T stopped" in job.alert("worker-stuck").reason
    for _ in range(10):
        job.publish(WorkerStuck(worker="w2-0", incarnation=1, node="w2", state="T stopped", seconds=60))
        job.beat(1)
    job.publish(WorkerStuck(worker="w2-0", incarnation=1, node="w2", state="R running", seconds=70))
    assert job.told("warning") == [("worker-stuck", "w2-0", "raised"), ("worker-stuck", "w2-0", "cleared")]


def test_a_worker_on_which_the_others_wait_is_named_after_the_limit_of_the_job() -> None:
    job = Watched("w1-0", "w2-0", stuck_after=20.0)
    job.beat(11)
    hung = {"w2-0": "compute", "w1-0": "reduce"}
    job.beat(5, steps=0, phase=hung, in_phase={"w2-0": 19.0, "w1-0": 19.0})
    assert job.told("critical") == []
    job.beat(1, steps=0, phase=hung, in_phase={"w2-0": 20.5, "w1-0": 20.5})
    assert job.told("critical") == [("no-progress", "w2-0", "raised")]
    assert "w1-0 wait for it" in job.alert("no-progress").reason
    job.beat(1)
    assert job.told("critical")[-1] == ("no-progress", "w2-0", "cleared")


def test_a_job_that_commits_nothing_is_told_and_a_slow_first_step_has_five_times_as_long() -> None:
    job = Watched("w1-0", "w2-0", stuck_after=20.0)
    job.beat(95, steps=0)
    assert job.told() == []
    job.beat(10, steps=0)
    assert job.told() == [("no-progress", "j", "raised")]
    job.beat(2)
    job.beat(19, steps=0)
    assert job.told()[-1] == ("no-progress", "j", "cleared")
    job.beat(3, steps=0)
    assert job.told()[-1] == ("no-progress", "j", "raised")


def test_a_long_save_of_one_worker_is_no_alert() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(11)
    for second in range(60):
        saving = {"w2-0": float(second), "w1-0": float(second)}
        job.beat(1, steps=0, phase={"w2-0": "user", "w1-0": "reduce"}, in_phase=saving)
    assert job.told() == []


def test_a_loss_that_is_not_finite_names_the_step() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    step = job.step
    job.commit(step, step, loss=float("nan"))
    job.step += 1
    assert job.told() == [("loss-not-finite", "j", "raised")]
    assert job.alert("loss-not-finite").reason == f"the loss is not finite (nan) since step {step}"
    job.beat(2)
    assert job.told()[-1] == ("loss-not-finite", "j", "cleared")


def test_a_loss_that_is_not_finite_is_also_heard_in_heartbeats() -> None:
    job = Watched("w1-0")
    job.beat(5)
    job.beat(1, commit=False, loss_finite={"w1-0": False}, loss={"w1-0": None})
    assert job.told() == [("loss-not-finite", "j", "raised")]


def test_the_samples_behind_a_loss_that_is_not_finite_are_named() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    step = job.step
    slots = (SlotNotFinite(slot=2, worker="w2-0", samples=(41, 97)),)
    job.publish(StepNotFinite(run="r1", step=step, generation=1, slots=slots, loss=float("nan")))
    job.commit(step, step, loss=float("nan"))
    job.step += 1
    later = tuple(SlotNotFinite(slot=s, worker="w1-0", samples=tuple(range(9))) for s in range(4))
    job.publish(StepNotFinite(run="r1", step=step + 1, generation=1, slots=later, loss=float("nan")))
    assert job.told("critical") == [("loss-not-finite", "j", "raised")]
    expected = f"since step {step}: it came from slot 2 (w2-0, samples 41, 97) of step {step}"
    assert job.alert("loss-not-finite").reason.endswith(expected)
    job.beat(12)
    assert job.told("critical")[-1] == ("loss-not-finite", "j", "cleared")


def test_a_gradient_that_is_not_finite_is_a_note_and_ends_after_a_while() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    slots = tuple(SlotNotFinite(slot=s, worker="w1-0", samples=tuple(range(9))) for s in range(4))
    job.publish(StepNotFinite(run="r1", step=job.step, generation=1, slots=slots, loss=0.5))
    assert job.told() == [("gradient-not-finite", "j", "raised")]
    reason = job.alert("gradient-not-finite").reason
    assert "slot 0 (w1-0, samples 0, 1, 2, 3, 4, 5, 6, 7, …)" in reason
    assert "and 1 more slots" in reason
    job.beat(8)
    assert job.told() == [("gradient-not-finite", "j", "raised")]
    job.beat(4)
    assert job.told()[-1] == ("gradient-not-finite", "j", "cleared")


def test_values_of_an_evaluation_that_differ_are_critical() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    told = EvaluationDiffers(
        run="r1", evaluation="e", step=9, micro_batches=(3, 4), worker="w2-0", first="w1-0", detail="loss is 1.0 there"
    )
    job.publish(told)
    assert job.told() == [("evaluation-differs", "w2-0", "raised")]
    assert "2 micro-batches of an evaluation after step 9" in job.alert("evaluation-differs").reason


def test_a_long_evaluation_is_no_alert_but_one_long_micro_batch_is() -> None:
    job = Watched("w1-0", "w2-0", stuck_after=20.0)
    job.beat(11)
    for _ in range(60):
        job.beat(1, steps=0, phase=dict.fromkeys(job.workers, "evaluate"), in_phase=dict.fromkeys(job.workers, 3.0))
    assert job.told() == []
    alone = {"w1-0": "wait", "w2-0": "evaluate"}
    job.beat(2, steps=0, phase=alone, in_phase={"w1-0": 3.0, "w2-0": 21.0})
    assert ("evaluation-stuck", "w2-0", "raised") in job.told()
    job.beat(2)
    assert ("evaluation-stuck", "w2-0", "cleared") in job.told()


def test_a_failed_script_is_told_with_the_last_line_of_its_traceback_until_the_worker_is_back() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    trace = "Traceback (most recent call last):\n  File 't.py', line 3\nValueError: boom\n"
    job.publish(WorkerFailed(worker="w2-0", incarnation=1, error="ValueError", traceback=trace, step=20, slot=3))
    assert job.alert("worker-failed").reason == "w2-0 failed in step 20, slot 3: ValueError: boom"
    job.publish(exited("w2-0", code=1))
    job.change("w1-0", removed=("w2-0",))
    job.incarnations["w2-0"] = 2
    job.publish(WorkerStarted(worker="w2-0", incarnation=2, node="w2", pid=2), registered("w2-0", TERMS, incarnation=2))
    job.change("w1-0", "w2-0")
    job.beat(5)
    assert job.told("warning") == [("worker-failed", "w2-0", "raised")]
    job.publish(WorkerCaughtUp(worker="w2-0", incarnation=2, generation=3, step=20))
    assert job.told("warning")[-1] == ("worker-failed", "w2-0", "cleared")


def test_out_of_memory_and_the_restart_budget_and_the_end_of_the_job() -> None:
    job = Watched("w1-0", "w2-0", max_restarts=3)
    job.beat(5)
    job.publish(exited("w2-0", out_of_memory=True, last_step=19))
    assert ("out-of-memory", "w2-0", "raised") in job.told("critical")
    job.change("w1-0", removed=("w2-0",), restarts=2)
    assert [a for a in job.told() if a[0] == "restart-budget"] == []
    job.change("w1-0", restarts=3)
    assert job.alert("restart-budget").reason == "3 of 3 restarts are spent; when all are, the job fails"
    job.publish(JobFinished(run="r1", outcome="failed", reason="ValueError: boom", root_worker="w2-0"))
    assert job.alert("job-failed").reason == "ValueError: boom (it began at w2-0)"
    job.tick(20)
    raised = {(a, s) for a, s, state in job.told() if state == "raised"}
    cleared = {(a, s) for a, s, state in job.told() if state == "cleared"}
    assert raised - cleared == {("job-failed", "j"), ("out-of-memory", "w2-0")}


def test_a_straggler_is_named_by_its_own_compute_time_and_nobody_else_is() -> None:
    job = Watched("w1-0", "w2-0", "w3-0")
    job.beat(15)
    same = dict.fromkeys(job.workers, 0.3)  # the ring makes all step times equal
    job.beat(9, compute_seconds={"w2-0": 0.25}, step_seconds=same)
    assert job.told() == []
    job.beat(3, compute_seconds={"w2-0": 0.25}, step_seconds=same)
    assert job.told() == [("straggler", "w2-0", "raised")]
    assert "computes a slot in 250 ms, the others in 50 ms (5.0 times as long)" in job.alert("straggler").reason
    job.beat(20, compute_seconds={"w2-0": 0.08})  # better, not good
    assert len(job.told()) == 1
    job.beat(7)
    assert job.told()[-1] == ("straggler", "w2-0", "cleared")


@pytest.mark.parametrize("slow", [0.0515, 0.09])
def test_a_little_slower_is_no_straggler(slow: float) -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(60, compute_seconds={"w2-0": slow})
    assert job.told() == []


def test_a_failed_checkpoint_is_told_until_one_is_committed() -> None:
    job = Watched("w1-0")
    job.publish(
        CheckpointRequested(checkpoint="c1"), CheckpointFailed(checkpoint="c1", reason="No space left on device")
    )
    assert job.alert("checkpoint-failed").reason == ("a checkpoint failed: No space left on device; there is no other")
    job.publish(CheckpointCommitted(checkpoint="c2", step=4, path="p", bytes=1, seconds=0.1))
    assert job.told()[-1] == ("checkpoint-failed", "j", "cleared")


def test_an_overdue_checkpoint_by_seconds_and_by_steps() -> None:
    job = Watched("w1-0", checkpoint_every_seconds=10.0)
    job.beat(19)
    assert job.told() == []
    job.beat(2)
    assert job.told() == [("checkpoint-overdue", "j", "raised")]
    job.publish(CheckpointCommitted(checkpoint="c", step=job.step, path="p", bytes=1, seconds=0.1))
    assert job.told()[-1] == ("checkpoint-overdue", "j", "cleared")

    job = Watched("w1-0", checkpoint_every_steps=10)
    job.beat(25)  # 100 steps, but that is no time for a save yet
    assert job.told() == []
    job.beat(6)
    assert job.alert("checkpoint-overdue").reason.endswith("one each 10 was asked for")


def test_fast_steps_with_checkpoints_that_keep_coming_are_not_overdue() -> None:
    job = Watched("w1-0", checkpoint_every_steps=1)
    for _ in range(20):
        job.beat(5, steps=50)
        job.publish(CheckpointCommitted(checkpoint="c", step=job.step - 100, path="p", bytes=1, seconds=4.0))
    assert job.told() == []


def test_one_silent_worker_is_late_first_and_silent_later() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    job.beat(2.5, silent=("w2-0",))
    assert job.told() == []
    job.beat(7, silent=("w2-0",))  # three times what a save may block: information, no more
    assert job.told() == [("heartbeat-late", "w2-0", "raised")]
    job.beat(8, silent=("w2-0",))
    assert job.told("warning") == [("heartbeat-silent", "w2-0", "raised")]
    job.beat(600, silent=("w2-0",))
    assert len(job.told()) == 2
    job.beat(3)
    assert job.told()[2:] == [("heartbeat-late", "w2-0", "cleared"), ("heartbeat-silent", "w2-0", "cleared")]


def test_a_silent_agent_is_told_by_node() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(20)
    job.beat(16, silent=("w2",))
    assert job.told() == [("node-silent", "w2", "raised")]


def test_if_nobody_is_heard_it_is_one_alert_about_the_job_and_none_about_workers() -> None:
    job = Watched("w1-0", "w2-0", "w3-0")
    job.beat(20)
    job.beat(120, silent=("w1-0", "w2-0", "w3-0", "w1", "w2", "w3"), steps=0)
    assert job.told() == [("job-silent", "j", "raised")]
    job.beat(5)
    assert job.told() == [("job-silent", "j", "raised"), ("job-silent", "j", "cleared")]


def test_memory_that_grows_towards_the_end_of_what_is_free_names_the_worker() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(30)
    for second in range(120):
        grown = (500 + 10 * second) << 20
        job.free = (3000 - 10 * second) << 20
        job.beat(1, rss={"w2-0": grown})
    assert job.told() == [("memory-growth", "w2-0", "raised")]
    assert "grows by" in job.alert("memory-growth").reason
    job.beat(240, rss={"w2-0": 1700 << 20})
    assert job.told()[-1] == ("memory-growth", "w2-0", "cleared")


def test_memory_that_fills_up_at_the_start_and_then_stays_is_no_alert() -> None:
    job = Watched("w1-0")
    for second in range(240):
        job.beat(1, rss={"w1-0": min(500 + 40 * second, 1500) << 20})
    assert job.told() == []


def test_a_restarted_worker_begins_with_a_clean_slate() -> None:
    """It is restarted in the middle of a save, frozen, slow and growing: nothing of that stays with the next one."""
    job = Watched("w1-0", "w2-0", stuck_after=20.0)
    job.beat(15)
    job.publish(WorkerStuck(worker="w2-0", incarnation=1, node="w2", state="D uninterruptible", seconds=1))
    job.publish(CheckpointRequested(checkpoint="c1"))
    job.publish(exited("w2-0", code=-9))
    job.change("w1-0", removed=("w2-0",))
    job.incarnations["w2-0"] = 2
    job.publish(WorkerStarted(worker="w2-0", incarnation=2, node="w2", pid=2), registered("w2-0", TERMS, incarnation=2))
    job.change("w1-0", "w2-0")
    job.publish(WorkerCaughtUp(worker="w2-0", incarnation=2, generation=3, step=60))
    before = len(job.told())
    job.beat(300)
    late = job.told()[before:]
    assert [a for a in late if a[2] == "raised"] == []
    raised = [a for a, _, state in job.told("warning") if state == "raised"]
    assert raised == ["worker-stuck"]


@given(values=st.lists(st.floats(0.001, 9), min_size=2, max_size=9), data=st.data())
def test_the_median_of_the_others(values: list[float], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(values) - 1))
    others = values[:at] + values[at + 1 :]
    assert median_without(sorted(values), values[at]) == pytest.approx(statistics.median(others))


def test_a_thousand_workers_are_looked_at_in_a_moment() -> None:
    job = Watched(*(f"n{i}-0" for i in range(1000)))
    before = time.process_time()
    job.beat(1, compute_seconds={f"n{i}-0": 0.05 + i / 1e5 for i in range(1000)})
    spent = time.process_time() - before
    assert job.told() == []
    print(f"one second of 1,000 workers and 1,000 agents costs {spent:.2f} s of one core")
    assert spent < 30, "not a promise: only that nothing grows with the square"


def test_the_page_about_the_monitor_knows_every_alert() -> None:
    text = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text()
    assert [name for rule in RULES for name in rule.alerts if f"`{name}`" not in text] == []


def diverged(worker: str, node: str, step: int, **more: object) -> WorkerDiverged:
    values = {"incarnation": 1, "generation": 1, "what": "weights", "digest": 1, "right": 2, "observer": "w9-0"} | more
    return WorkerDiverged(worker=worker, node=node, step=step, **values)


def test_a_divergence_is_told_with_worker_and_node_until_the_worker_has_caught_up() -> None:
    job = Watched("w1-0", "w2-0", "w3-0")
    job.beat(5)
    job.publish(diverged("w2-0", "n2", 41))
    alert = job.alert("worker-diverged")
    assert (alert.subject, alert.severity) == ("w2-0", "warning")
    assert alert.reason.startswith("w2-0 on n2 held other weights in step 41 (the majority agrees on others)")
    job.beat(5)
    assert ("worker-diverged", "w2-0", "cleared") not in job.told()
    job.publish(WorkerCaughtUp(worker="w2-0", incarnation=1, generation=2, step=43))
    assert ("worker-diverged", "w2-0", "cleared") in job.told()
    assert not [a for a in job.told() if a[0] == "node-diverges"]


def test_a_node_that_diverges_twice_is_suspected_until_the_run_is_over() -> None:
    job = Watched("w1-0", "w2-0", "w3-0")
    job.beat(5)
    back = [WorkerCaughtUp(worker=w, incarnation=1, generation=2, step=46) for w in ("w1-0", "w2-0", "w3-0")]
    job.publish(diverged("w2-0", "n2", 41, by="own"), back[1])
    job.publish(diverged("w1-0", "n1", 44), back[0])
    assert not [a for a in job.told() if a[0] == "node-diverges"], "two nodes, once each"
    job.publish(diverged("w3-0", "n2", 90, what="result"))
    alert = job.alert("node-diverges")
    assert (alert.subject, alert.severity) == ("n2", "critical")
    assert "2 times in this run (steps 41, 90): bad memory is likely" in alert.reason
    assert "reknit drain n2" in alert.suggestion
    job.publish(back[2])
    job.beat(5)
    assert ("node-diverges", "n2", "cleared") not in job.told()
    job.publish(JobFinished(run="r1", outcome="completed"))
    assert ("node-diverges", "n2", "cleared") in job.told()


def test_a_worker_that_was_replaced_is_not_held_against_its_successor() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    job.publish(diverged("w2-0", "w2", 41), exited("w2-0", signal="SIGKILL", code=-9))
    job.change("w1-0", removed=("w2-0",), reason="w2-0 died")
    assert ("worker-diverged", "w2-0", "cleared") not in job.told()
    job.incarnations["w2-0"] = 2
    job.publish(WorkerStarted(worker="w2-0", incarnation=2, node="w2", pid=2), registered("w2-0", TERMS, incarnation=2))
    job.change("w1-0", "w2-0", added=("w2-0",))
    job.publish(WorkerCaughtUp(worker="w2-0", incarnation=2, generation=3, step=50))
    assert ("worker-diverged", "w2-0", "cleared") in job.told()


def test_a_run_that_is_not_exact_says_so_to_its_end() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    job.publish(JobInexact(run="r1", worker="w2-0", incarnation=1, node="w2", difference="numerics.threads differs"))
    reason = "the run is not exact: w2-0 takes part although numerics.threads differs"
    assert job.alert("run-not-exact").reason == reason
    job.beat(30)
    assert ("run-not-exact", "w2-0", "cleared") not in job.told()
    job.publish(JobFinished(run="r1", outcome="completed"))
    assert ("run-not-exact", "w2-0", "cleared") in job.told()
