"""What a run says of its checkpoints: each failure once, and at the end what is there to go on from."""

from __future__ import annotations

import pytest

from reknit.cli.progress import line_of
from reknit.cli.saved import unsaved
from reknit.core.events import (
    MAKES_WAY,
    Alert,
    AnyEvent,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRequested,
    CheckpointRestored,
    CheckpointWritten,
    JobFinished,
    JobSubmitted,
)
from reknit.core.status import Status
from reknit.core.status_fold import see

FULL = "w0 cannot write to /ck: No space left on device"


def status(*events: AnyEvent) -> Status:
    found = Status("j")
    for event in (JobSubmitted(run="r", script="t.py"), *events):
        found = see(found, event, 0.0)
    return found


def asked(checkpoint: str) -> CheckpointRequested:
    return CheckpointRequested(checkpoint=checkpoint)


def failed(checkpoint: str, reason: str = FULL) -> CheckpointFailed:
    return CheckpointFailed(checkpoint=checkpoint, reason=reason)


def committed(checkpoint: str, step: int) -> CheckpointCommitted:
    return CheckpointCommitted(checkpoint=checkpoint, step=step, path="p", bytes=1, seconds=0.1)


def written(checkpoint: str) -> CheckpointWritten:
    return CheckpointWritten(
        checkpoint=checkpoint, step=20, worker="w0", file="f", chunk=0, chunks=1, bytes=1, hash="00"
    )


def over(step: int, outcome: str = "completed") -> JobFinished:
    return JobFinished(run="r", outcome=outcome, step=step)  # type: ignore[arg-type]


def restored(step: int) -> CheckpointRestored:
    return CheckpointRestored(run="r", checkpoint="q-1", step=step, worker="w0", generation=1)


@pytest.mark.parametrize(
    ("events", "outcome", "said"),
    [
        ((), "completed", ""),
        ((over(50),), "completed", ""),
        ((asked("a"), committed("a", 20), over(50)), "completed", ""),
        (
            (asked("a"), failed("a", "w0: other"), asked("b"), failed("b"), over(50)),
            "completed",
            f"no checkpoint was written: 2 failed, the last: {FULL}",
        ),
        (
            (asked("a"), committed("a", 20), asked("b"), failed("b"), over(50)),
            "completed",
            f"the newest checkpoint is of step 20, a later one failed: {FULL}",
        ),
        (
            (committed("a", 20), failed("b"), failed("c"), over(50)),
            "stopped",
            f"the newest checkpoint is of step 20, 2 later ones failed: {FULL}",
        ),
        ((failed("a"), committed("b", 40), over(50)), "completed", ""),
        (
            (asked("a"), over(50)),
            "completed",
            "no checkpoint was written: the first one was not complete when the run ended",
        ),
        (
            (over(50, "stopped"),),
            "stopped",
            "no checkpoint was written: nothing can go on from the 50 steps of this run",
        ),
        ((over(0, "stopped"),), "stopped", ""),
        ((over(50),), "drained", ""),
        (
            (restored(40), over(50, "stopped")),
            "stopped",
            "no checkpoint was written: --resume goes on from step 40 again",
        ),
        ((restored(40), over(40, "stopped")), "stopped", ""),
        ((asked("a"), failed("a", f"{MAKES_WAY} 60"), asked("b"), committed("b", 50), over(50)), "stopped", ""),
    ],
)
def test_the_end_says_what_there_is_to_go_on_from(events: tuple[AnyEvent, ...], outcome: str, said: str) -> None:
    assert unsaved(status(*events), outcome) == said


def test_a_failure_counts_once_however_many_writers_say_it() -> None:
    found = status(asked("a"), failed("a"), failed("a", "w1 cannot write to /ck: No space left on device"))
    assert (found.saving.failures, found.saving.failed, found.saving.in_flight) == (1, FULL, "")


def test_a_writer_that_is_late_does_not_take_a_committed_checkpoint_back() -> None:
    found = status(asked("a"), committed("a", 20), failed("a"))
    assert (found.saving.failures, found.saving.failed, found.saving.step) == (0, "", 20)


def test_what_failed_before_leaves_the_one_in_flight_alone() -> None:
    found = status(asked("a"), failed("a"), asked("b"), written("b"))
    assert see(found, failed("a"), 1.0) == found
    assert (found.saving.in_flight, found.saving.begun) == ("b", True)
    assert not see(found, failed("b"), 1.0).saving.begun
    assert not see(found, committed("b", 20), 1.0).saving.begun
    assert not status(asked("a"), written("c")).saving.begun


def test_a_failure_is_a_line_and_its_alert_is_not_another() -> None:
    assert line_of(failed("a")) == (f"checkpoint failed: {FULL}", "yellow")
    for state in ("raised", "cleared"):
        alert = Alert(alert="checkpoint-failed", subject="j", state=state, severity="warning", reason=FULL)  # type: ignore[arg-type]
        assert line_of(alert) is None
