"""What a run has to say of its checkpoints at its end, if not all went well with them. Pure."""

from __future__ import annotations

from reknit.core.status import Saving, Status


def unsaved(status: Status, outcome: str) -> str:
    """Return what is wrong with the run's checkpoints, in words; empty if nothing is.

    Args:
        status: of the job.
        outcome: of this launcher's part in it: completed, failed, stopped or drained.
    """
    saving = status.saving
    steps = max(status.committed, status.finished.step if status.finished else 0)
    if saving.failures:
        return _failed(saving)
    if saving.step >= 0 or outcome == "drained" or steps <= max(saving.restored, 0):
        return ""
    if saving.in_flight:
        return "no checkpoint was written: the first one was not complete when the run ended"
    return _none(saving, steps) if outcome == "stopped" else ""


def _failed(saving: Saving) -> str:
    if saving.step < 0:
        return f"no checkpoint was written: {saving.failures} failed, the last: {saving.failed}"
    later = "a later one" if saving.failures == 1 else f"{saving.failures} later ones"
    return f"the newest checkpoint is of step {saving.step}, {later} failed: {saving.failed}"


def _none(saving: Saving, steps: int) -> str:
    if saving.restored >= 0:
        return f"no checkpoint was written: --resume goes on from step {saving.restored} again"
    return f"no checkpoint was written: nothing can go on from the {steps} steps of this run"
