"""Divergence: a worker with other bits than the others, a node where that happens again, a run that is not exact."""

from __future__ import annotations

from collections.abc import Iterable

from reknit.core.events import WorkerDiverged
from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

AGAIN = 2
"""Divergences on one node, in one run, from which on its memory is suspected."""
_OTHER = {"result": "another result of", "weights": "other weights in", "state": "another state after"}


def diverged(view: View, _now: float) -> Iterable[Finding]:
    """A worker held other bits than the others and has not caught up again."""
    for event in view.incidents.diverged.values():
        hint = f"once can happen; if {event.node} does it again, test its memory"
        yield Finding("worker-diverged", event.worker, "warning", f"{_told(event)}; it learns anew", hint)


def again(view: View, _now: float) -> Iterable[Finding]:
    """Workers of one node diverged more than once in this run."""
    for node, events in view.incidents.nodes_diverged.items():
        if len(events) >= AGAIN:
            steps = ", ".join(str(e.step) for e in events)
            reason = f"workers on {node} diverged {len(events)} times in this run (steps {steps}): bad memory is likely"
            hint = f"take it out: reknit drain {node}; then test its memory (memtest86+, edac-util, rasdaemon)"
            yield Finding("node-diverges", node, "critical", reason, hint)


def inexact(view: View, _now: float) -> Iterable[Finding]:
    """Workers whose arithmetic differs take part, as --numerics relaxed allows."""
    if view.status.finished is not None:
        return
    for worker, difference in view.status.inexact.items():
        reason = f"the run is not exact: {worker} takes part although {difference}"
        yield Finding("run-not-exact", worker, "warning", reason, "without --numerics relaxed it would be refused")


def measured_otherwise(view: View, _now: float) -> Iterable[Finding]:
    """Two workers measured the same micro-batch of an evaluation and got different values."""
    event = view.incidents.differed
    if event is not None:
        what = f"{len(event.micro_batches)} micro-batches of an evaluation after step {event.step}"
        reason = f"{event.worker} measured {what} otherwise than others: {event.detail} (there: {event.first})"
        hint = "measure must give the same for the same weights and samples: no state of its own, no clock, no file"
        yield Finding("evaluation-differs", event.worker, "critical", reason, hint)


def _told(event: WorkerDiverged) -> str:
    how = "it saw its own bits change" if event.by == "own" else "the majority agrees on others"
    held = f"{event.worker} on {event.node} held {_OTHER[event.what]} step {event.step}"
    return f"{held} ({how}); none of it was committed"


RULES = (
    Rule(("worker-diverged",), diverged),
    Rule(("node-diverges",), again),
    Rule(("run-not-exact",), inexact),
    Rule(("evaluation-differs",), measured_otherwise),
)
