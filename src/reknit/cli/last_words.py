"""What the launcher says of a job of which nobody else can say how it ended. Pure."""

from __future__ import annotations

import signal

from reknit.core.events import AgentLeft, JobFinished
from reknit.core.status import Status

from .root_cause import Failures


def last_words(
    status: Status,
    failures: Failures,
    *,
    run: str,
    node: str,
    code: int,
    signalled: int = 0,
    fatal: str = "",
    farewell: AgentLeft | None = None,
) -> JobFinished:
    """Return how the job ended, as far as this node can know.

    Args:
        status: of the job, as heard.
        failures: what went wrong, as heard.
        run: of the job.
        node: this one.
        code: exit code of its agent.
        signalled: the first signal that asked this launcher to stop, 0: none.
        fatal: what could not be kept running, empty: nothing.
        farewell: the agent's own last word.
    """
    root = failures.root
    words = {"run": run, "step": status.committed}
    if signalled:
        return JobFinished(outcome="stopped", reason=signal.Signals(signalled).name, **words)  # type: ignore[arg-type]
    if code == 0 and not fatal:
        ends = [worker.exit for worker in status.workers.values() if worker.node == node]
        clean = bool(ends) and all(end is not None and end.code == 0 for end in ends)
        joined = status.terms is not None
        if clean and (not joined or status.committed >= status.steps):
            said = "all scripts ended" + ("" if joined else "; no step was trained in the ring")
            return JobFinished(outcome="completed", reason=said, **words)  # type: ignore[arg-type]
        why = f": {farewell.reason}" if farewell is not None else ""
        return JobFinished(outcome="stopped", reason=f"its last node has left{why}", **words)  # type: ignore[arg-type]
    reason = fatal or (f"{root.worker}: {root.what}" if root else f"the agent ended with exit code {code}")
    return JobFinished(outcome="failed", reason=reason, root_worker=root.worker if root else "", **words)  # type: ignore[arg-type]
