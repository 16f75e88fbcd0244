"""What a new worker is told: the order that the forkserver carries out."""

from __future__ import annotations

from reknit.core.context import AgentContext, WorkerContext, to_env
from reknit.worker.child import Order

from .actions import Fork
from .lifeline import Lifeline


def order_of(mine: AgentContext, action: Fork, incarnation: int, *, threads: int, line: Lifeline | None) -> Order:
    """Return the order for a worker.

    Args:
        mine: what the agent was told itself.
        action: which worker, and the how-manieth attempt.
        incarnation: of the worker.
        threads: that torch shall use.
        line: tells of its death, None if that cannot be had.
    """
    context = WorkerContext(
        endpoint=mine.endpoint,
        job=mine.job,
        run=mine.run,
        node=mine.node,
        worker=action.worker,
        incarnation=incarnation,
        attempt=action.attempt,
        secret=mine.secret,
        host=mine.host,
        slots=mine.slots,
        checkpoint_dir=mine.checkpoint_dir,
        resume=mine.resume,
        resume_run=mine.resume_run,
        lanes=mine.lanes,
        overlap=mine.overlap,
        transport=mine.transport,
        verify_weights=mine.verify_weights,
        chaos=mine.chaos,
    )
    return Order(
        action.worker,
        to_env(context),
        mine.script,
        mine.args,
        mine.module,
        threads,
        line,
        behind=action.behind,
    )
