"""The loss is nan or infinite: training goes on, but it trains nothing any more."""

from __future__ import annotations

from collections.abc import Iterable

from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View


def not_finite(view: View, _now: float) -> Iterable[Finding]:
    """The loss is not finite since some step."""
    status = view.status
    if status.not_finite >= 0:
        value = "" if status.loss is None or status.loss == status.loss else " (nan)"
        reason = f"the loss is not finite{value} since step {status.not_finite}"
        where = f"; the newest checkpoint is of step {status.saving.step}" if status.saving.step >= 0 else ""
        hint = f"stop and look at the samples and the learning rate of that step{where}"
        yield Finding("loss-not-finite", view.job, "critical", reason, hint)


RULES = (Rule(("loss-not-finite",), not_finite),)
