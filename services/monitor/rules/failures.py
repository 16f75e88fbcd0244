"""Failures: a script that raised, a process killed for memory, the restart budget, the whole job."""

from __future__ import annotations

import math
from collections.abc import Iterable

from reknit.core.worker_ends import last_line
from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

NEARLY_SPENT = 0.8


def failed(view: View, _now: float) -> Iterable[Finding]:
    """The user's script raised in a worker, and the worker is not back."""
    for name, event in view.incidents.failed.items():
        where = f" in step {event.step}" if event.step >= 0 else ""
        slot = f", slot {event.slot}" if event.slot >= 0 else ""
        exit_ = view.incidents.exited.get(name)
        hint = f"whole traceback: {exit_.log}" if exit_ and exit_.log else "reknit events --area worker"
        yield Finding("worker-failed", name, "warning", f"{name} failed{where}{slot}: {last_line(event)}", hint)


def out_of_memory(view: View, _now: float) -> Iterable[Finding]:
    """The kernel killed a worker for memory, and the worker is not back."""
    for name, event in view.incidents.exited.items():
        if event.out_of_memory:
            reason = f"{name} on {event.node} was killed for memory after step {event.last_step}"
            yield Finding("out-of-memory", name, "critical", reason, "fewer workers a node, or a smaller micro-batch")


def budget(view: View, _now: float) -> Iterable[Finding]:
    """The job-wide restart budget is nearly spent."""
    status = view.status
    if status.world is None or status.spec is None or status.finished is not None:
        return
    most, used = status.spec.max_restarts, status.world.restarts
    if used and used >= math.ceil(NEARLY_SPENT * most):
        reason = f"{used} of {most} restarts are spent; when all are, the job fails"
        yield Finding("restart-budget", view.job, "warning", reason, "find out why workers die: reknit events")


def job_failed(view: View, _now: float) -> Iterable[Finding]:
    """The run failed."""
    end = view.status.finished
    if end is not None and end.outcome == "failed":
        root = f" (it began at {end.root_worker})" if end.root_worker else ""
        yield Finding("job-failed", view.job, "critical", f"{end.reason}{root}", "fix the cause and run it again")


RULES = (
    Rule(("worker-failed",), failed),
    Rule(("out-of-memory",), out_of_memory),
    Rule(("restart-budget",), budget),
    Rule(("job-failed",), job_failed),
)
