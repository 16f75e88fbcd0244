"""Silence: heartbeats do not come, of one worker, of a node, of everybody.

A worker that saves, or holds the interpreter's lock, may be late: that is information. Only long silence is a warning.
If nobody is heard, the fault is more likely between us and them: one alert about the job, none about each worker.
"""

from __future__ import annotations

from collections.abc import Iterable

from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

LATE = 3.0
SILENT = 15.0
ALL_SILENT = 10.0


def workers(view: View, now: float) -> Iterable[Finding] | None:
    """A member's heartbeats do not come while others are heard."""
    if not _running(view):
        return ()
    if view.deaf(now) or view.since_listening(now) < LATE:
        return None
    findings = []
    for worker in view.status.members:
        if worker.state in ("finished", "dead"):
            continue
        quiet = now - max(worker.heard or 0.0, worker.since, view.listening or 0.0)
        phase = f", last heard of in phase {worker.pulse.phase}" if worker.pulse else ""
        if quiet > LATE:
            reason = f"no heartbeat of {worker.worker} for more than {LATE:.0f} s{phase}"
            findings.append(Finding("heartbeat-late", worker.worker, "info", reason, release=1.0))
        if quiet > SILENT:
            reason = f"no heartbeat of {worker.worker} on {worker.node} for more than {SILENT:.0f} s{phase}"
            hint = f"is {worker.node} reachable, is process {worker.pid} alive?"
            findings.append(Finding("heartbeat-silent", worker.worker, "warning", reason, hint, release=1.0))
    return findings


def nodes(view: View, now: float) -> Iterable[Finding] | None:
    """An agent's heartbeats do not come while others are heard, and the world has members of its node.

    An agent that dies takes its workers with it: that is told by worker, and the silence after it is no news.
    """
    if view.status.finished is not None:
        return ()
    if view.deaf(now) or view.since_listening(now) < SILENT:
        return None
    needed = {worker.node for worker in view.status.members}
    return [
        Finding(
            "node-silent",
            node.node,
            "warning",
            f"no heartbeat of the agent of {node.node} for more than {SILENT:.0f} s",
            f"is {node.host or node.node} reachable, is its agent alive?",
            release=1.0,
        )
        for node in view.status.nodes.values()
        if node.up and node.node in needed and now - max(node.heard or 0.0, view.listening or 0.0) > SILENT
    ]


def everybody(view: View, now: float) -> Iterable[Finding]:
    """No heartbeat at all, although a world runs."""
    if _running(view) and view.status.members and view.deaf(now) and view.since_listening(now) > ALL_SILENT:
        reason = f"no heartbeat of any worker for more than {ALL_SILENT:.0f} s"
        hint = "the broker or the network between it and the workers; training itself does not need it"
        yield Finding("job-silent", view.job, "warning", reason, hint, hold=ALL_SILENT - 2.0, release=1.0)


def _running(view: View) -> bool:
    world = view.status.world
    return world is not None and world.status == "running" and view.status.finished is None


RULES = (
    Rule(("heartbeat-late", "heartbeat-silent"), workers),
    Rule(("node-silent",), nodes),
    Rule(("job-silent",), everybody),
)
