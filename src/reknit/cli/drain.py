"""`reknit drain TARGET`: take a node or a worker out politely, at a step boundary."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from reknit.core.errors import UsageError
from reknit.core.events import DrainAsked
from reknit.core.settings import Settings, nearest

from . import options, output
from .acting import acting, must_live, say
from .app import app, verb


@app.command()
@verb
def drain(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A node, or a worker.", show_default=False)],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the log.")] = "",
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
) -> None:
    """Take a node or a worker out of a running job; it leaves after the step in flight, nothing is computed again.

    The last worker is not drained: `reknit stop` ends the run. The last node takes a last checkpoint and ends it too.
    """
    asyncio.run(_drain(options.settings(job=job, nats=nats), target, reason))


async def _drain(settings: Settings, target: str, reason: str) -> None:
    async with acting(settings) as (look, found, live):
        must_live(look, live=live)
        nodes = [node.node for node in found.nodes.values() if node.up]
        known = sorted({*nodes, *(worker.worker for worker in found.members)})
        if target not in known:
            like = nearest(target, known)
            hint = f"did you mean {like!r}? " if like else ""
            raise UsageError(
                f"job {look.job!r} has no node or worker {target!r}", hint=f"{hint}there are: {', '.join(known)}"
            )
        if target not in nodes and not any(w.worker != target and w.state != "leaving" for w in found.members):
            raise UsageError(
                f"{target} is the last worker of job {look.job}: nobody else has the state of its run",
                hint=f"end the run, after a last checkpoint: reknit stop --job {look.job}; "
                f"or have another worker first: reknit scale 2 --job {look.job}",
            )
        await say(look, DrainAsked(target=target, reason=reason))
        output.note(f"{target} is asked to leave job {look.job}")
