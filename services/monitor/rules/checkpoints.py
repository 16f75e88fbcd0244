"""Checkpoints: one failed, or none was committed for twice the interval that was asked for."""

from __future__ import annotations

from collections.abc import Iterable

from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

OVERDUE = 2.0
"""Times the interval."""
LEAST_SECONDS = 30.0
"""With fast steps an interval in steps may be shorter than a save takes: no alert while checkpoints keep coming."""


def failed(view: View, _now: float) -> Iterable[Finding]:
    """The newest checkpoint was given up; it is over with the next one that is committed."""
    saving = view.status.saving
    if saving.failed:
        kept = f"the one of step {saving.step} is untouched" if saving.step >= 0 else "there is no other"
        hint = "the next one is taken as usual; if it is the disk: free space, permissions"
        yield Finding("checkpoint-failed", view.job, "warning", f"a checkpoint failed: {saving.failed}; {kept}", hint)


def overdue(view: View, now: float) -> Iterable[Finding]:
    """No checkpoint was committed for more than twice the interval."""
    status = view.status
    spec, world, saving = status.spec, status.world, status.saving
    if spec is None or world is None or world.status != "running" or status.finished is not None or status.stopping:
        return
    assert view.listening is not None
    waits = now - max(saving.at or 0.0, status.began, view.listening)
    steps = status.committed - max(saving.step, 0)
    reason = ""
    if spec.checkpoint_every_seconds > 0 and waits > OVERDUE * spec.checkpoint_every_seconds:
        reason = f"no checkpoint for {waits:.0f} s, one each {spec.checkpoint_every_seconds:.0f} s was asked for"
    elif 0 < spec.checkpoint_every_steps * OVERDUE < steps and waits > LEAST_SECONDS:
        reason = f"no checkpoint for {steps} steps, one each {spec.checkpoint_every_steps} was asked for"
    if reason:
        hint = "reknit status shows whether one is in flight; a longer interval if a save takes that long"
        yield Finding("checkpoint-overdue", view.job, "warning", reason, hint)


RULES = (Rule(("checkpoint-failed",), failed), Rule(("checkpoint-overdue",), overdue))
