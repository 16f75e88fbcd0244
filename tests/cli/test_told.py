"""What a run tells: progress, the end, the root cause first."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from reknit.cli.progress import line_of, live_line, mark, underway
from reknit.cli.root_cause import Failures
from reknit.cli.summary import Ending, lines
from reknit.core.events import (
    Alert,
    AnyEvent,
    CheckpointRestored,
    JobFinished,
    JobSubmitted,
    Member,
    RingBroken,
    StepsCommitted,
    Terms,
    WorkerExited,
    WorkerFailed,
    WorkerPulse,
    WorkerRefused,
    WorkerRegistered,
    WorkerStarted,
    WorldChanged,
)
from reknit.core.headcount import TO_GET_ONE
from reknit.core.plan import split
from reknit.core.status import Status
from reknit.core.status_fold import hear, see

TERMS = Terms(slots=4, micro_batch=8, samples=320, epochs=2, seed=0)


def submitted(run: str = "r") -> JobSubmitted:
    return JobSubmitted(run=run, script="t.py")


def failed(worker: str, error: str = "ValueError: boom", step: int = 7) -> WorkerFailed:
    return WorkerFailed(worker=worker, incarnation=1, error=error, traceback=f"Traceback\n{error}", step=step)


def exited(
    worker: str, code: int = 1, *, expected: bool = False, oom: bool = False, incarnation: int = 1
) -> WorkerExited:
    return WorkerExited(
        worker=worker,
        incarnation=incarnation,
        node="n",
        pid=1,
        code=code,
        signal="SIGKILL" if code == -9 else "",
        stderr_tail="last words",
        log=f"/logs/{worker}.log",
        expected=expected,
        out_of_memory=oom,
    )


def failures(*events: AnyEvent) -> Failures:
    found = Failures()
    for event in events:
        found.tell(event)
    return found


def test_the_first_failure_is_the_root_the_ring_errors_of_others_are_not() -> None:
    broken = RingBroken(worker="w1", incarnation=1, generation=1, step=7, peer="w3", side="next")
    found = failures(
        submitted(),
        broken,
        failed("w3"),
        exited("w3"),
        failed("w1", "RingLost: w3 is gone"),
        exited("w1"),
        exited("w2", -9),
    )
    assert found.root is not None
    assert (found.root.worker, found.root.what, found.root.log) == ("w3", "ValueError: boom", "/logs/w3.log")
    assert [f.worker for f in found.follow_ups] == ["w1", "w2"]


def test_what_the_end_of_the_run_names_counts_more_than_the_order() -> None:
    end = JobFinished(run="r", outcome="failed", root_worker="w2")
    found = failures(submitted(), failed("w1"), failed("w2"), end)
    assert found.root is not None
    assert found.root.worker == "w2"


def test_an_exit_that_was_to_be_and_a_former_run_are_no_failures() -> None:
    found = failures(
        submitted("old"),
        failed("w1"),
        JobFinished(run="old", outcome="failed"),
        submitted("r"),
        exited("w2", 143, expected=True),
        exited("w3", 0),
    )
    assert found.root is None


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (exited("w", -9), "killed by signal 9 (SIGKILL), possibly out of memory"),
        (exited("w", -9, oom=True), "killed by signal 9 (SIGKILL): out of memory"),
        (exited("w", 2), "exit code 2"),
        (
            WorkerRefused(worker="w", incarnation=1, reason="torch 2.9 here, 2.13 there"),
            "refused: torch 2.9 here, 2.13 there",
        ),
    ],
)
def test_how_a_worker_ended_in_words(event: AnyEvent, what: str) -> None:
    root = failures(submitted(), event).root
    assert root is not None
    assert root.what == what


def test_the_summary_of_a_failure_begins_with_its_root() -> None:
    found = failures(submitted(), failed("w3"), exited("w3"), *(exited("w1", -9, incarnation=i) for i in range(3)))
    told = [text for text, _ in lines(Ending("failed", "budget spent", 12.34, Status("j"), found))]
    assert told == [
        "root cause: worker w3 on n in step 7: ValueError: boom",
        "  Traceback",
        "  ValueError: boom",
        "  log: /logs/w3.log",
        "  then: worker w1 on n: killed by signal 9 (SIGKILL), possibly out of memory (3 times)",
        "failed: j: budget spent",
        "  12.3 s",
    ]


def test_the_same_failure_of_all_workers_is_counted_once() -> None:
    again = [msgspec.structs.replace(failed(w), incarnation=i) for w, i in (("w3", 2), ("w1", 1), ("w3", 3))]
    found = failures(submitted(), failed("w3"), exited("w3"), *again, exited("w2", -9))
    told = [text for text, _ in lines(Ending("failed", "again and again", 1.0, Status("j"), found))]
    assert told[4:6] == [
        "  4 times in all: w3 (3), w1 (1)",
        "  then: worker w2 on n: killed by signal 9 (SIGKILL), possibly out of memory",
    ]


def test_the_summary_of_a_failure_without_a_cause_does_not_invent_one() -> None:
    told = [text for text, _ in lines(Ending("failed", "the agent ended", 1.0, Status("j"), Failures()))]
    assert told == ["failed: j: the agent ended", "  1.0 s"]


def test_the_summary_says_when_no_step_was_trained_in_the_ring() -> None:
    end = JobFinished(run="r", outcome="completed", reason="all scripts ended")
    told = [text for text, _ in lines(Ending("completed", end.reason, 1.0, status(end), Failures()))]
    assert told[0] == "completed: j: the script ended, but no step was trained in the ring"
    assert "each worker ran the whole script by itself" in told[1]
    trained = status(registered("w1"), world("w1"), end)
    told = [text for text, _ in lines(Ending("completed", end.reason, 1.0, trained, Failures()))]
    assert told[0] == "completed: j"


def status(*events: AnyEvent) -> Status:
    found = Status("j")
    for event in (submitted(), *events):
        found = see(found, event, 0.0)
    return found


def world(*names: str, status: str = "running", awaiting: str = "", removed: tuple[str, ...] = ()) -> WorldChanged:
    members = tuple(Member(worker=n, incarnation=1, node="n", pid=1, address="a:1") for n in names)
    return WorldChanged(
        generation=3, run="r", status=status, members=members, reason="because", awaiting=awaiting, removed=removed
    )


def spares(*names: str) -> tuple[Member, ...]:
    return tuple(msgspec.structs.replace(member, role="spare") for member in world(*names).members)


def registered(worker: str) -> WorkerRegistered:
    return WorkerRegistered(worker=worker, incarnation=1, node="n", run="r", pid=1, address="a:1", terms=TERMS)


def test_the_live_line() -> None:
    assert live_line(status()) == "starting"
    started = WorkerStarted(worker="w1", incarnation=1, node="n", pid=1)
    assert live_line(status(started)) == "starting: 1 worker, 0 ready"
    away = [msgspec.structs.replace(started, worker="w2"), exited("w2", -15, expected=True)]
    assert live_line(status(started, *away)) == "starting: 1 worker, 0 ready"
    assert live_line(status(world(status="paused", awaiting="1 more node"))) == "waiting for 1 more node"
    running = status(registered("w1"), registered("w2"), world("w1", "w2"))
    assert live_line(running) == "step 0/20  2 workers  generation 3"
    spare = msgspec.structs.replace(world("w1", "w2"), members=(*world("w1").members, *spares("w2")))
    assert (
        live_line(see(running, msgspec.structs.replace(spare, generation=4), 1.0))
        == "step 0/20  1 worker and 1 spare  generation 4"
    )
    assert live_line(see(running, registered("w3"), 1.0)) == "step 0/20  2 workers, 1 learning  generation 3"
    early = WorkerPulse(worker="w1", incarnation=1, generation=3, step=0, committed=0, epoch=0)
    ten = see(hear(running, early, 1.0), steps(14), 1.0)
    assert live_line(ten) == "step 15/20  epoch 2/2  2 workers  generation 3", "it has yet to restore"
    left = msgspec.structs.replace(world("w1", removed=("w2",)), generation=4)
    gone = see(dataclasses.replace(running, wanted=2), left, 1.0)
    assert live_line(gone).endswith("  1 worker  generation 4  degraded: w2 is missing")
    pulse = WorkerPulse(
        worker="w1", incarnation=1, generation=3, step=12, committed=12, epoch=1, loss=0.25, rate=1234.5, current=True
    )
    assert live_line(hear(running, pulse, 1.0)) == (
        "step 12/20  epoch 2/2  loss 0.25  1,234 samples/s  2 workers  generation 3"
    )


def test_nothing_is_said_to_run_of_which_nobody_is_heard() -> None:
    """The world is that of a launcher that was killed; the same command was given again."""
    before = status(registered("w1"), registered("w2"), world("w1", "w2"), steps(4))
    assert not underway(before)
    assert live_line(before, moves=False) == "starting; 5 of 20 steps were committed before"
    anew = WorkerStarted(worker="w1", incarnation=2, node="n", pid=7)
    pulse = WorkerPulse(worker="w1", incarnation=2, generation=0, step=0, committed=0)
    coming = hear(see(before, anew, 1.0), pulse, 1.0)
    assert not underway(coming), "that is the next life of a member"
    assert live_line(coming, moves=False) == "starting: 1 worker, 0 ready; 5 of 20 steps were committed before"
    paused = msgspec.structs.replace(world(status="paused", awaiting="a worker", removed=("w1", "w2")), generation=4)
    said = "starting: 1 worker, 0 ready; 5 of 20 steps were committed before"
    assert live_line(see(coming, paused, 2.0), moves=False) == said
    nobody = live_line(see(before, paused, 2.0), moves=False)
    assert nobody == f"step 5/20  0 workers  generation 4  paused: waiting for a worker ({TO_GET_ONE})"
    assert mark(before, moves=False) != mark(coming, moves=False) != mark(coming)
    heard = hear(before, msgspec.structs.replace(pulse, incarnation=1, generation=3), 1.0)
    assert not underway(heard), "it may find no checkpoint"
    restored = CheckpointRestored(run="r", checkpoint="", step=0, worker="w1", generation=3)
    assert underway(see(heard, restored, 2.0))
    assert underway(hear(before, msgspec.structs.replace(pulse, incarnation=1, generation=3, committed=5), 1.0))


def steps(last: int) -> StepsCommitted:
    ranges = split(4, ["w1", "w2"])
    return StepsCommitted(run="r", first=0, last=last, generation=3, ranges=ranges, slots=4)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (world("w1"), "world 3: 1 worker: because"),
        (
            msgspec.structs.replace(world("w1", "w2"), members=(*world("w1", "w2").members, *spares("w3", "w4"))),
            "world 3: 2 workers and 2 spares: because",
        ),
        (world(status="paused", awaiting="2 more"), "world 3: waiting for 2 more"),
        (
            world(status="paused", awaiting="2 more", removed=("w1",)),
            "world 3: paused: because; waiting for 2 more",
        ),
        (world("w1", status="finished"), None),
        (
            Alert(
                alert="stuck", subject="w1", state="raised", severity="critical", reason="no step", suggestion="look"
            ),
            "critical: stuck: no step (look)",
        ),
        (Alert(alert="stuck", subject="w1", state="cleared", severity="critical", reason="x"), "over: stuck (w1)"),
        (Alert(alert="job-failed", subject="j", state="raised", severity="critical", reason="x"), None),
        (Alert(alert="note", subject="j", state="raised", severity="info", reason="x"), None),
        (CheckpointRestored(run="r", checkpoint="", step=0, worker="w1", generation=1), None),
        (
            CheckpointRestored(run="r", checkpoint="c1", step=40, worker="w1", generation=1, skipped=("c2: damaged",)),
            "restored from checkpoint c1 (step 40); skipped c2: damaged",
        ),
        (
            CheckpointRestored(run="r", checkpoint="r-1", step=40, worker="w1", generation=1),
            "restored from checkpoint r-1 (step 40)",
        ),
        (
            CheckpointRestored(run="r", checkpoint="q-1", step=40, worker="w1", generation=1),
            "restored from checkpoint q-1 (step 40, of run q)",
        ),
    ],
)
def test_lines_of_events(event: AnyEvent, line: str | None) -> None:
    told = line_of(event)
    assert (told[0] if told else None) == line


def test_steps_that_are_lost_for_want_of_a_checkpoint_are_told() -> None:
    event = CheckpointRestored(run="r", checkpoint="", step=0, worker="w1", generation=1)
    said = "no checkpoint was written, beginning at step 0, without the 57 steps of before"
    assert line_of(event, committed=57) == (said, "yellow")
