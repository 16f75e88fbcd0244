"""The alert book: raised once, cleared once, whatever the rules see in between.

A finding is raised when it has been true for its `hold`, and cleared when it has been false for its `release`. What is
raised is read from the log alone; the book only knows what waits. An alert that comes and goes is released more and
more slowly, so a flapping cause is one long alert and no storm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from reknit.core.events import Alert
from reknit.core.status import Key, Status

if TYPE_CHECKING:
    from .finding import Finding

ASK_AGAIN = 2.0
"""Seconds after which an alert that did not come back from the log is published again, with the same id."""
FLAP_WINDOW = 600.0
FREE_FLAPS = 2
"""Raisings in the window that cost nothing; each further one doubles the release."""
FIRST_DAMPING = 10.0
MOST_DAMPING = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Book:
    """What waits.

    Attributes:
        rising: found, not raised yet -> monotonic seconds since when.
        falling: raised, not found any more -> monotonic seconds since when.
        releases: raised -> seconds its finding asked for as release.
        raisings: monotonic times of the raisings in the flap window.
        asked: id of an alert that is on its way to the log -> when it was asked for.
    """

    rising: Mapping[Key, float] = dataclasses.field(default_factory=dict)
    falling: Mapping[Key, float] = dataclasses.field(default_factory=dict)
    releases: Mapping[Key, float] = dataclasses.field(default_factory=dict)
    raisings: Mapping[Key, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    asked: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """An alert to publish."""

    alert: Alert
    id: str


def alert_id(job: str, alert: Alert) -> str:
    """Return the id of an alert's publication: whoever publishes it, and however often, it is stored once."""
    return f"alert/{job}/{alert.alert}/{alert.subject}/{alert.number}/{alert.state}"


def weigh(
    book: Book, status: Status, findings: Collection[Finding], judged: Collection[str], now: float
) -> tuple[Book, tuple[Asked, ...]]:
    """Compare what is true with what is raised.

    Args:
        book: what waited until now.
        status: tells which alerts are raised and how often each was, as the log says.
        findings: what is true now.
        judged: names of the alerts whose rules could tell; of others nothing is raised or cleared.
        now: monotonic seconds.

    Returns:
        The new book, and what is to be published.
    """
    raised, job = status.alerts, status.job
    found = {(f.alert, f.subject): f for f in findings}
    rising = {key: book.rising.get(key, now) for key in found if key not in raised}
    rising |= {k: since for k, since in book.rising.items() if k[0] not in judged and k not in raised}
    falling = {key: book.falling.get(key, now) for key in raised if key not in found and key[0] in judged}
    releases = {k: found[k].release if k in found else book.releases.get(k, 0.0) for k in raised}
    raisings = _recent(book.raisings, now)
    asked = {id_: at for id_, at in book.asked.items() if now - at < ASK_AGAIN}
    out = []
    for key, finding in found.items():
        if key in rising and now - rising[key] >= finding.hold:
            ask = _ask(job, _alert(finding, status.numbers.get(key, 0) + 1))
            if ask.id not in asked:
                out.append(ask)
                raisings[key] = (*raisings.get(key, ()), now)
    for key, since in falling.items():
        wait = max(releases[key], damping(raisings.get(key, ())))
        if status.finished is not None or now - since >= wait:
            out.append(_ask(job, _cleared(raised[key])))
    fresh = tuple(ask for ask in out if ask.id not in asked)
    asked |= {ask.id: now for ask in fresh}
    return Book(rising, falling, releases, raisings, asked), fresh


def damping(raisings: tuple[float, ...]) -> float:
    """Return the least release, in seconds, of an alert that was raised at these times of the flap window."""
    extra = len(raisings) - FREE_FLAPS
    return min(FIRST_DAMPING * 2.0 ** (extra - 1), MOST_DAMPING) if extra > 0 else 0.0


def _recent(raisings: Mapping[Key, tuple[float, ...]], now: float) -> dict[Key, tuple[float, ...]]:
    recent = {key: tuple(t for t in times if now - t < FLAP_WINDOW) for key, times in raisings.items()}
    return {key: times for key, times in recent.items() if times}


def _ask(job: str, alert: Alert) -> Asked:
    return Asked(alert, alert_id(job, alert))


def _alert(finding: Finding, number: int) -> Alert:
    return Alert(
        alert=finding.alert,
        subject=finding.subject,
        state="raised",
        severity=finding.severity,
        reason=finding.reason,
        suggestion=finding.suggestion,
        number=number,
    )


def _cleared(alert: Alert) -> Alert:
    return Alert(
        alert=alert.alert,
        subject=alert.subject,
        state="cleared",
        severity=alert.severity,
        reason=f"over: {alert.reason}",
        number=alert.number,
    )
