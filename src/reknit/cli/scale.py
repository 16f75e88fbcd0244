"""`reknit scale N`: another number of workers, without stopping anything."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from reknit.core.events import JobScaled
from reknit.core.settings import Settings

from . import options, output
from .acting import acting, must_live, say
from .app import app, verb


@app.command()
@verb
def scale(
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="Active workers in all, over all nodes.")],
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
) -> None:
    """Change the number of workers of a running job; agents start or drain workers to fit."""
    asyncio.run(_scale(options.settings(job=job, nats=nats), number))


async def _scale(settings: Settings, number: int) -> None:
    async with acting(settings) as (look, found, live):
        must_live(look, live=live)
        await say(look, JobScaled(workers=number))
        spare = number - found.spec.slots if found.spec and found.spec.slots else 0
        more = (
            f"; {spare} of them will be spares: a step has {found.spec.slots} slots" if spare > 0 and found.spec else ""
        )
        active = sum(worker.state == "active" for worker in found.members)
        output.note(f"job {look.job} is asked to go from {active} to {number} active workers{more}")
