"""The status of a job from its log, and with heartbeats: what `reknit status` and the page show."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    Alert,
    AnyEvent,
    CheckpointCommitted,
    CheckpointRestored,
    HostsListed,
    JobFinished,
    JobScaled,
    JobStopAsked,
    JobSubmitted,
    ListedHost,
    RingRecovered,
    StepsCommitted,
    Terms,
    WorkerCaughtUp,
    WorkerExited,
    WorkerFailed,
    WorkerPulse,
    WorkerRefused,
    WorkerStarted,
)
from reknit.core.plan import split
from reknit.core.status import MOST_LOSSES, Status, report
from reknit.core.status_fold import hear, see
from reknit.core.status_nodes import nodes
from reknit.core.worker_ends import exit_in_words, last_line
from support.history import member, random_history, registered, world

TERMS = Terms(slots=4, micro_batch=2, samples=80, epochs=3, seed=1)


def told(*events: AnyEvent, job: str = "j") -> Status:
    status = Status(job)
    for at, event in enumerate(events):
        status = see(status, event, now=float(at), wall=1000.0 + at)
    return status


def begun() -> tuple[AnyEvent, ...]:
    return (
        JobSubmitted(run="r1", script="t.py", max_nodes=2),
        registered("a", TERMS),
        registered("b", TERMS),
        world(1, member("a"), member("b"), added=("a", "b")),
    )


def record(step: int, loss: float | None = 0.5, generation: int = 1) -> StepsCommitted:
    ranges = split(4, ["a", "b"])
    return StepsCommitted(run="r1", first=step, last=step, generation=generation, ranges=ranges, slots=4, loss=loss)


def states(status: Status) -> dict[str, str]:
    return {name: worker.state for name, worker in status.workers.items()}


def test_the_story_of_a_run() -> None:
    assert told(*begun()[:1]).state == "starting"
    running = told(*begun(), record(0), record(1))
    assert running.state == "running"
    assert states(running) == {"a": "active", "b": "active"}
    assert (running.committed, running.steps) == (2, 30)
    lost = told(*begun(), record(0), world(2, member("a"), removed=("b",), reason="b died"))
    assert lost.state == "degraded"
    assert lost.lost == {"b": "b died"}
    joined = told(*begun(), world(2, member("a"), removed=("b",)), world(3, member("a"), member("b", 2)))
    assert (joined.state, states(joined)) == ("running", {"a": "active", "b": "learning"})
    caught = WorkerCaughtUp(worker="b", incarnation=2, generation=3, step=1)
    assert states(see(joined, caught, 9.0))["b"] == "active"
    assert told(*begun(), world(2, member("a"), status="paused")).state == "paused"
    assert told(*begun(), JobStopAsked()).state == "stopping"
    end = JobFinished(run="r1", outcome="failed", reason="ValueError: boom", root_worker="b")
    assert told(*begun(), end).state == "failed"
    assert report(told(*begun(), end))["root_worker"] == "b"


def beat(worker: str, committed: int, incarnation: int = 1, phase: str = "learn") -> WorkerPulse:
    return WorkerPulse(
        worker=worker, incarnation=incarnation, generation=0, step=committed, committed=committed, phase=phase
    )


def test_a_newcomer_learns_beside_a_ring_that_runs_until_it_has_caught_up() -> None:
    status = told(*begun(), *(record(i) for i in range(20)), registered("c", TERMS))
    assert states(status)["c"] == "learning"
    assert "c" not in [w.worker for w in status.members]

    def shown(status: Status) -> dict[str, object]:
        return next(w for w in report(status, 30.0)["workers"] if w["worker"] == "c")

    assert shown(status)["note"] == "receives the state"
    status = hear(status, beat("c", 7), 21.0)
    assert (shown(status)["step"], shown(status)["note"]) == (7, "13 steps behind")
    assert (status.committed, report(status, 30.0)["progress"]["committed"]) == (20, 20)
    status = see(status, WorkerCaughtUp(worker="c", incarnation=1, generation=1, step=20), 22.0)
    assert (states(status)["c"], shown(status)["note"]) == ("ready", "caught up at step 20")
    status = see(status, world(2, member("a"), member("b"), member("c"), added=("c",), planned=True), 23.0)
    assert (states(status)["c"], shown(status)["note"]) == ("active", "")
    assert report(status)["world"]["planned"] is True
    assert [w["planned"] for w in report(status)["worlds"]] == [False, True]


def test_who_caught_up_may_come_in_as_a_spare() -> None:
    caught = WorkerCaughtUp(worker="c", incarnation=1, generation=1, step=1)
    status = told(*begun(), registered("c", TERMS), caught)
    status = see(status, world(2, member("a"), member("b"), member("c", role="spare")), 9.0)
    assert states(status)["c"] == "spare"


def test_one_outside_learns_only_while_there_is_a_ring_to_learn_from() -> None:
    status = told(*begun()[:1], registered("a", TERMS))
    assert states(status)["a"] == "ready", "there is no ring yet"
    status = told(*begun(), registered("c", TERMS))
    assert states(status)["c"] == "learning"
    status = see(status, world(2, member("a"), status="paused", removed=("b",)), 9.0)
    assert states(status)["c"] == "ready", "nobody steps"
    status = see(status, world(3, member("a"), member("b", 2)), 9.0)
    assert (states(status)["b"], states(status)["c"]) == ("learning", "learning")
    assert (
        states(told(*begun(), registered("c", TERMS), WorkerCaughtUp(worker="c", incarnation=0, generation=1, step=1)))[
            "c"
        ]
        == "learning"
    ), "words of another life"


def test_a_new_connection_changes_nothing_a_new_life_does() -> None:
    caught = WorkerCaughtUp(worker="c", incarnation=1, generation=1, step=1)
    status = told(*begun(), registered("c", TERMS), caught)
    assert see(status, registered("c", TERMS), 9.0).workers == status.workers
    assert see(status, registered("a", TERMS), 9.0).workers == status.workers
    again = see(status, registered("c", TERMS, incarnation=2), 9.0)
    assert (states(again)["c"], again.workers["c"].current) == ("learning", False)


def test_one_that_was_taken_out_and_comes_back_learns_again() -> None:
    status = told(*begun(), world(2, member("a"), removed=("b",), reason="b died"), registered("b", TERMS))
    assert (states(status)["b"], status.workers["b"].current) == ("learning", False)
    assert status.state == "degraded", "it is not back yet"
    status = see(status, WorkerCaughtUp(worker="b", incarnation=1, generation=2, step=1), 9.0)
    status = see(status, world(3, member("a"), member("b")), 9.0)
    assert (states(status)["b"], status.state) == ("active", "running")


@pytest.mark.parametrize("inside", [True, False])
def test_the_next_life_is_not_lost_with_the_one_before(inside: bool) -> None:
    """Its predecessor may be taken out when it has registered, or even caught up, already."""
    started = WorkerStarted(worker="b", incarnation=2, node="n", pid=5)
    caught = WorkerCaughtUp(worker="b", incarnation=2, generation=1, step=1)
    status = told(*begun(), started, registered("b", TERMS, incarnation=2), *([caught] if inside else []))
    members = (member("a"), member("b", 2)) if inside else (member("a"),)
    status = see(status, world(2, *members, removed=("b",), added=("b",) * inside, reason="b died"), 9.0)
    assert states(status)["b"] == ("active" if inside else "learning")
    assert status.lost == ({} if inside else {"b": "b died"})


def test_whoever_restored_has_the_state() -> None:
    caught = WorkerCaughtUp(worker="c", incarnation=1, generation=1, step=1)
    status = told(*begun(), registered("c", TERMS), caught, registered("d", TERMS), world(2, status="paused"))
    status = see(status, world(3, member("c"), member("d")), 9.0)
    assert (states(status)["c"], states(status)["d"]) == ("active", "learning")
    status = see(status, CheckpointRestored(run="r1", checkpoint="k", step=0, worker="d", generation=3), 9.0)
    assert states(status)["d"] == "active"


def test_a_fleet_that_is_scaled_down_has_lost_nobody() -> None:
    status = told(*begun(), JobScaled(workers=1), world(2, member("a"), removed=("b",)))
    assert status.state == "running"


def test_an_alert_above_information_makes_a_running_job_degraded() -> None:
    alert = Alert(alert="straggler", subject="a", state="raised", severity="warning", reason="slow", number=1)
    status = told(*begun(), alert)
    assert (status.state, status.trouble, report(status)["reason"]) == ("degraded", "straggler (a)", "straggler (a)")
    over = Alert(alert="straggler", subject="a", state="cleared", severity="warning", reason="over", number=1)
    after = see(status, over, 9.0)
    assert (after.state, after.trouble, report(after)["reason"]) == ("running", "", "")


def test_a_degraded_job_says_who_is_missing_and_each_thing_once() -> None:
    def alert(name: str, subject: str, severity: str = "warning") -> Alert:
        return Alert(alert=name, subject=subject, state="raised", severity=severity, reason="x", number=1)  # type: ignore[arg-type]

    status = told(*begun(), world(2, member("a"), removed=("b",), reason="b died"))
    assert status.trouble == "b is missing"
    for raised in (alert("worker-failed", "b"), alert("checkpoint-failed", "j"), alert("world-changed", "j", "info")):
        status = see(status, raised, 9.0)
    status = see(status, alert("job-below-min", "j", "critical"), 9.0)
    assert status.trouble == "b is missing, checkpoint-failed"
    status = see(status, world(3, member("a"), member("b", 2)), 9.0)
    assert status.trouble == "checkpoint-failed, worker-failed (b)", "until the monitor clears it"


def test_the_epoch_is_that_of_the_committed_steps() -> None:
    status = told(*begun(), *(record(i) for i in range(12)))
    early = beat("a", 0)
    assert report(hear(status, early, 20.0), 20.0)["progress"]["epoch"] == 1, "ten steps are one"


def test_a_second_submission_of_a_living_run_changes_nothing() -> None:
    status = told(*begun(), record(0))
    assert see(status, JobSubmitted(run="r2", script="x.py"), 9.0) == status


def test_the_next_run_begins_afresh_but_keeps_the_alerts() -> None:
    alert = Alert(alert="job-failed", subject="j", state="raised", severity="critical", reason="boom", number=3)
    status = told(*begun(), record(0), JobFinished(run="r1", outcome="failed"), alert)
    status = see(status, JobSubmitted(run="r2", script="t.py"), 9.0)
    assert (status.run, status.committed, status.worlds) == ("r2", 0, ())
    assert status.numbers == {("job-failed", "j"): 3}


def test_a_restore_takes_steps_and_losses_back_and_late_words_do_not_count() -> None:
    status = told(*begun(), *(record(i) for i in range(10)))
    back = CheckpointRestored(run="r1", checkpoint="c", step=4, worker="c", generation=2)
    status = see(status, back, 20.0)
    assert (status.committed, [s for s, _ in status.losses]) == (4, [0, 1, 2, 3])
    assert see(status, record(10, generation=1), 21.0).committed == 4
    assert see(status, record(4, generation=2), 21.0).committed == 5


def test_heartbeats_of_another_incarnation_are_not_the_workers() -> None:
    status = told(*begun())
    pulse = WorkerPulse(worker="a", incarnation=7, generation=1, step=3, committed=3)
    assert hear(status, pulse, 9.0) == status
    status = see(status, WorkerStarted(worker="a", incarnation=7, node="n", pid=5), 10.0)
    assert hear(status, pulse, 11.0).workers["a"].pulse == pulse


def test_the_loss_curve_stays_small() -> None:
    status = told(*begun(), *(record(i, loss=1.0 / (i + 1)) for i in range(3000)))
    assert MOST_LOSSES / 2 <= len(status.losses) <= MOST_LOSSES
    assert status.losses[0] == (0, 1.0)


def test_the_report_is_json_even_with_a_loss_that_is_not_a_number() -> None:
    status = told(*begun(), record(0, loss=float("nan")))
    status = hear(
        status,
        WorkerPulse(
            worker="a", incarnation=1, generation=1, step=1, committed=1, loss=float("inf"), rate=float("nan"), rss=7
        ),
        9.0,
    )
    plain = report(status, 10.5)
    text = json.dumps(plain, allow_nan=False)
    assert json.loads(text)["progress"]["loss"] is None
    assert plain["workers"][0]["silent"] == 1.5
    assert plain["progress"]["loss_finite"] is False


def test_the_report_tells_how_long_is_left_and_how_fast_a_world_was_mended() -> None:
    status = told(*begun(), record(0), world(2, member("a"), removed=("b",), reason="b died"))
    status = see(status, RingRecovered(worker="a", generation=2, step=1, seconds=0.04), 9.0)
    saved = CheckpointCommitted(checkpoint="c", step=1, path="p", bytes=1, seconds=0.1)
    status = see(status, saved, 9.5)
    pulse = WorkerPulse(worker="a", incarnation=1, generation=2, step=10, committed=10, step_seconds=0.5, samples=80)
    plain = report(hear(status, pulse, 10.0), 10.0)
    assert plain["progress"]["seconds_left"] == 10.0
    assert plain["progress"]["samples"] == 80
    assert plain["worlds"][1]["recovered_seconds"] == 0.04
    assert plain["worlds"][1]["time"] == 1005.0
    assert plain["checkpoint"]["step"] == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"code": -9, "signal": "SIGKILL"}, "killed by signal SIGKILL"),
        ({"code": -11}, "killed by signal SIGSEGV"),
        ({"code": -64}, "killed by signal SIGRTMAX"),
        ({"code": -99}, "killed by signal 99"),
        ({"code": -15, "signal": "SIGTERM", "expected": True}, "ended as asked (SIGTERM)"),
        ({"code": 143, "expected": True}, "ended as asked (SIGTERM)"),
        ({"code": 143}, "exited with code 143 (SIGTERM)"),
        ({"code": 3, "expected": True}, "exited with code 3"),
        ({"code": 1}, "exited with code 1"),
        ({"code": 0, "expected": True}, "ended"),
        ({"code": -9, "out_of_memory": True}, "killed for memory (out of memory)"),
    ],
)
def test_exits_in_words(fields: dict[str, object], words: str) -> None:
    assert exit_in_words(WorkerExited(worker="a", incarnation=1, node="n", pid=1, **fields)) == words


@pytest.mark.parametrize(
    ("code", "expected", "state"),
    [(0, True, "finished"), (143, True, "finished"), (1, True, "dead"), (143, False, "dead")],
)
def test_who_was_to_end_and_failed_over_it_is_dead(code: int, expected: bool, state: str) -> None:
    end = WorkerExited(worker="b", incarnation=1, node="n", pid=1, code=code, expected=expected)
    assert states(told(*begun(), end))["b"] == state


def test_last_line_of_a_failure() -> None:
    trace = "Traceback:\n  File x\nValueError: boom\n\n"
    assert last_line(WorkerFailed(worker="a", incarnation=1, error="E", traceback=trace)) == "ValueError: boom"
    assert last_line(WorkerFailed(worker="a", incarnation=1, error="E", traceback="")) == "E"


def test_a_refused_worker_says_why() -> None:
    status = told(*begun(), registered("x", TERMS), WorkerRefused(worker="x", incarnation=1, reason="slots differ"))
    assert (status.workers["x"].state, status.workers["x"].note) == ("refused", "slots differ")


@given(seed=st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_in_random_histories_the_status_agrees_with_the_log(seed: int) -> None:
    history = random_history(seed)
    status = told(*history.events)
    assert status.committed == status.steps == history.course.steps
    assert status.state == "completed"
    assert status.world is not None
    assert {m.worker for m in status.world.members} == set(history.workers)
    assert {status.workers[w].state for w in history.workers} <= {"active", "spare", "learning"}
    json.dumps(report(status), allow_nan=False)


def test_listed_hosts_show_which_nodes_are_on_them() -> None:
    def joined(node: str, host: str, **labels: str) -> AgentJoined:
        return AgentJoined(node=node, run="r1", host=host, pid=1, nproc=1, labels=labels)

    listed = HostsListed(
        run="r1",
        hosts=(
            ListedHost(host="h1", slots=4, addresses=("10.0.0.1",)),
            ListedHost(host="h2.example.org"),
            ListedHost(host="h3", slots=2),
        ),
    )
    events = (
        *begun(),
        joined("a", "10.0.0.1"),
        joined("b", "10.0.0.2", hostname="h2"),
        joined("c", "10.0.0.3"),
        listed,
    )
    hosts = report(told(*events))["hosts"]
    assert hosts == [
        {"host": "h1", "slots": 4, "nodes": ["a"]},
        {"host": "h2.example.org", "slots": 0, "nodes": ["b"]},
        {"host": "h3", "slots": 2, "nodes": []},
    ]
    gone = report(told(*events, AgentLeft(node="a")))["hosts"]
    assert gone[0]["nodes"] == []
    assert report(told(*events, HostsListed(run="another", hosts=())))["hosts"] == hosts
    assert report(told(*begun()))["hosts"] == []
    labels = {n["node"]: n["labels"] for n in nodes(told(*events))}
    assert labels == {"a": {}, "b": {"hostname": "h2"}, "c": {}}
