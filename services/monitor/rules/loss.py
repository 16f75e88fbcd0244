"""Loss or gradient are nan or infinite: training goes on, but it may train nothing any more; and from which samples.

A gradient alone may be not finite now and then in a healthy run of mixed precision: its scaler skips that step.
"""

from __future__ import annotations

from collections.abc import Iterable

from reknit.core.events import SlotNotFinite, StepNotFinite
from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

MOST_SLOTS = 3
MOST_SAMPLES = 8
CALM = 10.0
"""Seconds without such a gradient until the alert is cleared."""


def not_finite(view: View, _now: float) -> Iterable[Finding]:
    """The loss is not finite since some step."""
    status = view.status
    if status.not_finite >= 0:
        value = "" if status.loss is None or status.loss == status.loss else " (nan)"
        told = view.incidents.not_finite
        first = told[0] if told is not None and told[0].step <= status.not_finite else None
        reason = f"the loss is not finite{value} since step {status.not_finite}{_from(first)}"
        where = f"; the newest checkpoint is of step {status.saving.step}" if status.saving.step >= 0 else ""
        hint = f"stop and look at the samples and the learning rate of that step{where}"
        yield Finding("loss-not-finite", view.job, "critical", reason, hint)


def gradient(view: View, _now: float) -> Iterable[Finding]:
    """The loss is finite, the gradient of some step was not."""
    told = view.incidents.not_finite
    if told is not None and view.status.not_finite < 0:
        newest = told[1]
        reason = f"the gradient of step {newest.step} is not finite{_from(newest)}"
        hint = "with a GradScaler that is usual now and then; without one the weights are spoilt"
        yield Finding("gradient-not-finite", view.job, "info", reason, hint, release=CALM)


def _from(event: StepNotFinite | None) -> str:
    if event is None or not event.slots:
        return ""
    rest = len(event.slots) - MOST_SLOTS
    more = f" and {rest} more slots" if rest > 0 else ""
    step = f" of step {event.step}"
    return f": it came from {', '.join(_slot(s) for s in event.slots[:MOST_SLOTS])}{more}{step}"


def _slot(slot: SlotNotFinite) -> str:
    ids = ", ".join(map(str, slot.samples[:MOST_SAMPLES])) + (", …" if len(slot.samples) > MOST_SAMPLES else "")
    return f"slot {slot.slot} ({slot.worker}, samples {ids})"


RULES = (Rule(("loss-not-finite",), not_finite), Rule(("gradient-not-finite",), gradient))
