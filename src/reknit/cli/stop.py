"""`reknit stop`: end a job's run, politely or at once."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer

from reknit.core import setting_kinds as kinds
from reknit.core.bus import Received
from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.events import JobFinished, JobStopAsked
from reknit.core.settings import Settings
from reknit.core.status import Status

from . import options, output
from .acting import acting, say
from .app import app, verb
from .look import Look


@app.command()
@verb
def stop(
    *,
    now: Annotated[bool, typer.Option("--now", help="At once: no last checkpoint, no step boundary.")] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            parser=options.value(kinds.number(0)),
            help="Wait so long for the end; 0: do not wait.",
        ),
    ] = 60.0,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the log.")] = "",
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
) -> None:
    """Stop a job: all workers leave at a step boundary, after a last checkpoint, from which --resume goes on."""
    asyncio.run(_stop(options.settings(job=job, nats=nats), reason or "asked by reknit stop", at_once=now, wait=wait))


async def _stop(settings: Settings, reason: str, *, at_once: bool, wait: float) -> None:
    async with acting(settings) as (look, found, live):
        assert found.spec is not None
        if not live:
            # nobody is there to hear it: the end is said here, so that the name is free again
            end = JobFinished(run=found.spec.run, outcome="stopped", reason=reason, step=found.committed)
            await look.bus.publish(look.job, end, id=f"finished/{found.spec.run}")
            output.note(f"job {look.job} was interrupted; it is over now")
            return
        await say(look, JobStopAsked(reason=reason, at_once=at_once))
        output.note(f"job {look.job} is asked to stop" + (" at once" if at_once else ""))
        if not at_once and (lost := _unsaved(found)):
            output.note(lost)
        if wait:
            await _until_over(look, found.spec.run, wait)


def _unsaved(found: Status) -> str:
    """Say that nobody is left of whose state a last checkpoint could be taken; empty if somebody is."""
    saved = max(found.saving.step, found.saving.restored)
    if found.members or found.committed <= max(saved, 0):
        return ""
    newest = f"the newest is of step {saved}" if saved >= 0 else "there is none"
    return f"no worker is left that has the state of step {found.committed}: no last checkpoint is taken, {newest}"


async def _until_over(look: Look, run: str, wait: float) -> None:
    over: asyncio.Future[JobFinished] = asyncio.get_running_loop().create_future()

    def heard(received: Received) -> None:
        if isinstance(received.event, JobFinished) and received.event.run == run and not over.done():
            over.set_result(received.event)

    began = time.monotonic()
    await look.bus.follow(heard, job=look.job, areas=["job"])
    try:
        end = await asyncio.wait_for(over, wait)
    except TimeoutError:
        raise ControlPlaneUnreachable(
            f"job {look.job} has not stopped within {wait:g} s", hint="stop it at once with --now"
        ) from None
    output.note(f"job {look.job} is over after {time.monotonic() - began:.1f} s: {end.outcome}")
