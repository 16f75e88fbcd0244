"""What a rule finds: something that is true now. When it is raised and cleared is the alert book's business."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

from .view import View

Severity = Literal["info", "warning", "critical"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is true now.

    Attributes:
        alert: stable name of the alert.
        subject: what it is about: a worker, a node, or the job's name.
        severity: how grave it is.
        reason: what was seen, in words with figures.
        suggestion: the next thing to do, or empty.
        hold: seconds it must be true without a break before it is raised.
        release: seconds it must be false without a break before it is cleared.
    """

    alert: str
    subject: str
    severity: Severity
    reason: str
    suggestion: str = ""
    hold: float = 0.0
    release: float = 0.0


Look = Callable[[View, float], Iterable[Finding] | None]
"""(view, monotonic now) -> what is true now; None: it cannot be told at present, raised alerts stay as they are."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One rule and the names of the alerts that only it raises and clears."""

    alerts: tuple[str, ...]
    look: Look
