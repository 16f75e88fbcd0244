"""The reducer: an input and the view before it give the view after it, and the alerts to raise and clear."""

from __future__ import annotations

import dataclasses

from reknit.core.decision import Decision, Out, Told
from reknit.core.events import Alert, Event, Pulse

from .book import Asked, weigh
from .finding import Finding
from .rules import RULES
from .view import View, with_event, with_pulse

CLOCK_MOVED = 0.05
"""Seconds by which the broker's clock must differ from what we know of it until that is corrected."""
LOOK_EVERY = 0.5
AFTER_THE_END = 10.0
"""Seconds between two looks at the rules when only time goes on, while a run goes on and after it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Notify:
    """Tell people: an alert is on the log."""

    alert: Alert
    id: str = ""


def decide(view: View, told: Told) -> Decision[View]:
    """Take in one input; rules are looked at after each event of the log, and twice a second."""
    event, now = told.event, told.now
    if told.live and view.listening is None:
        view = dataclasses.replace(view, listening=now)
    if isinstance(event, Pulse):
        return Decision(with_pulse(view, event, now) if told.live else view)
    if isinstance(event, Event):
        view = with_event(view, event, now, told.wall, told.seq)
    elif told.at and abs(told.at - now - view.ahead) > CLOCK_MOVED:
        return decide(dataclasses.replace(view, ahead=told.at - now), told)
    elif now - view.looked < (LOOK_EVERY if view.status.finished is None else AFTER_THE_END):
        return Decision(view)
    if not told.live:
        return Decision(view)
    view, asks = _look(view, now)
    out = tuple(Out(ask.alert, ask.id) for ask in asks)
    do = (Notify(event, told.id),) if isinstance(event, Alert) else ()
    return Decision(view, out, "; ".join(f"{ask.alert.alert} {ask.alert.state}" for ask in asks), do)


def _look(view: View, now: float) -> tuple[View, tuple[Asked, ...]]:
    """Ask all rules, and publish what changed."""
    findings: list[Finding] = []
    judged: set[str] = set()
    for rule in RULES:
        found = rule.look(view, now)
        if found is not None:
            findings += found
            judged |= set(rule.alerts)
    book, asks = weigh(view.book, view.status, findings, judged, now)
    return dataclasses.replace(view, book=book, looked=now), asks
