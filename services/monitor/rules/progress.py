"""No progress: a process that does not run, a worker on which the others wait, a job that commits nothing.

A slow first step (compilation, cold caches) and a save are no reason: the first step may take five times as long, and
only the limit that the job was submitted with (`--stuck-after`) counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

STUCK_AFTER = 120.0
FIRST_STEP = 5.0


def frozen(view: View, _now: float) -> Iterable[Finding]:
    """A worker's process exists and does not run (stopped, uninterruptible), as its agent sees."""
    if view.status.finished is not None:
        return
    for name, worker in view.status.workers.items():
        if worker.stuck and worker.state not in ("dead", "finished"):
            reason = f"{name} (pid {worker.pid} on {worker.node}) does not run: {worker.stuck}"
            yield Finding("worker-stuck", name, "warning", reason, f"kill -CONT {worker.pid} if it was stopped by hand")


def waited_for(view: View, now: float) -> Iterable[Finding] | None:
    """A worker is in its own code for too long while others wait for it in the ring; or nobody commits anything."""
    if view.status.finished is not None or view.status.world is None or view.status.world.status != "running":
        return ()
    if view.deaf(now) or view.since_listening(now) < STUCK_AFTER / 12:
        return None
    limit = _limit(view)
    pulses = view.fresh(now)
    slow = [p for p in pulses if p.phase in ("compute", "user", "evaluate") and p.in_phase > limit]
    waiting = [p.worker for p in pulses if p.phase == "reduce"]
    findings = [
        Finding(
            "no-progress",
            p.worker,
            "critical",
            f"{p.worker} is in step {p.step}, phase {p.phase}, for {p.in_phase:.0f} s; "
            f"{', '.join(w for w in waiting if w != p.worker)} wait for it",
            "look where it is (py-spy dump) or drain it: it is replaced",
        )
        for p in slow
        if any(w != p.worker for w in waiting)
    ]
    if any(p.phase == "evaluate" and p.in_phase <= limit for p in pulses):
        return findings  # each micro-batch of an evaluation begins the phase anew: it goes on
    return findings or _nobody_moves(view, now, limit)


def evaluates(view: View, now: float) -> Iterable[Finding] | None:
    """One micro-batch of an evaluation takes longer than a step may, whether others wait or not."""
    if view.status.finished is not None:
        return ()
    if view.deaf(now):
        return None
    limit = _limit(view)
    return [
        Finding(
            "evaluation-stuck",
            p.worker,
            "warning",
            f"{p.worker} measures one micro-batch of an evaluation for {p.in_phase:.0f} s (after step {p.step})",
            "look where it is: py-spy dump --pid; the others go on without it",
        )
        for p in view.fresh(now)
        if p.phase == "evaluate" and p.in_phase > limit
    ]


def _nobody_moves(view: View, now: float, limit: float) -> list[Finding]:
    status = view.status
    assert view.listening is not None
    first = status.moved is None
    limit = limit * FIRST_STEP if first else limit
    since = max(status.moved or 0.0, status.began, view.listening)
    if now - since <= limit or not status.members:
        return []
    what = "the first step has not been" if first else f"no step has been (the last was {status.committed - 1})"
    reason = f"{what} committed for more than {limit:.0f} s"
    return [Finding("no-progress", view.job, "critical", reason, "reknit status shows the phase of each worker")]


def _limit(view: View) -> float:
    return view.status.spec.stuck_after if view.status.spec is not None else STUCK_AFTER


RULES = (
    Rule(("worker-stuck",), frozen),
    Rule(("no-progress",), waited_for),
    Rule(("evaluation-stuck",), evaluates),
)
