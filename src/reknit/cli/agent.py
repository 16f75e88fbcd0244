"""The agent of this node, as a program to start: what it is told of the run."""

from __future__ import annotations

from reknit.core import context, launch
from reknit.core.context import AgentContext, Endpoint
from reknit.core.events import JobSubmitted
from reknit.core.home import JobFolder

from .entry import workers_of
from .order import Order

AGENT = "agent"


def program(
    order: Order, spec: JobSubmitted, *, node: str, endpoint: Endpoint, host: str, folder: JobFolder
) -> launch.Program:
    """Return the agent's program.

    Args:
        order: what was asked for on this node.
        spec: what was submitted.
        node: this node's name.
        endpoint: of the broker.
        host: this node's address, as others reach it.
        folder: of the job on this node.
    """
    told = AgentContext(
        endpoint=endpoint,
        job=order.job,
        run=spec.run,
        node=node,
        nproc=workers_of(spec, order.nproc),
        script=order.target,
        args=order.spec.args,
        module=order.module,
        secret=order.secret,
        host=host,
        labels=order.labels,
        seeds=order.seeds,
        log_dir=str(folder.logs),
        slots=spec.slots,
        checkpoint_dir=spec.checkpoint_dir,
        max_restarts=spec.max_restarts,
        grace=order.grace,
        threads=order.threads,
        lanes=order.lanes,
        overlap=order.overlap,
        resume=spec.resume,
        resume_run=spec.resume_run,
        transport=spec.transport,
        verify_weights=spec.verify_weights,
        chaos=spec.chaos,
        gossip=spec.gossip,
        gossip_port=order.gossip_port,
        gossip_keys=order.gossip_keys,
    )
    env = {context.AGENT: context.to_env(told), "REKNIT_TRACE_DIR": str(folder.traces)}
    return launch.module(AGENT, "reknit.worker.agent", env)
