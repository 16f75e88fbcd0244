"""`reknit chaos`: spoil something in a running job, to see that it is found and healed."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal, cast

import typer

from reknit.core import setting_kinds as kinds
from reknit.core.errors import UsageError
from reknit.core.events import ChaosAsked
from reknit.core.settings import Settings, nearest

from . import options, output
from .acting import acting, must_live, say
from .app import app, verb

_TARGETS = ("weights", "moments", "result")
_NUMBER = options.value(kinds.whole(-1))

chaos = typer.Typer(help="Spoil something in a running job, to see that it is found.", no_args_is_help=True)
app.add_typer(chaos, name="chaos")


@chaos.command("flip-bit")
@verb
def flip_bit(
    *,
    worker: Annotated[str, typer.Option("--worker", "-w", metavar="WORKER", help="Whose memory.", show_default=False)],
    at_step: Annotated[
        int,
        typer.Option("--at-step", metavar="STEP", parser=_NUMBER, help="Not before this step; -1: at once."),
    ] = -1,
    target: Annotated[str, typer.Option("--target", metavar="weights|moments|result", help="What.")] = "weights",
    bit: Annotated[
        int, typer.Option("--bit", metavar="N", parser=_NUMBER, help="Which bit of all the target's bits; -1: any.")
    ] = -1,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
) -> None:
    """Flip one bit in a worker's weights, in its optimizer's moments, or in the next result that it applies.

    Workers obey only if the job was started with --allow-chaos.
    """
    if target not in _TARGETS:
        like = nearest(target, _TARGETS)
        hint = f"did you mean {like!r}? " if like else ""
        raise UsageError(f"{target!r} cannot be spoilt", hint=f"{hint}--target is one of {', '.join(_TARGETS)}")
    asked = ChaosAsked(
        worker=worker,
        fault="flip-bit",
        target=cast("Literal['weights', 'moments', 'result']", target),
        at_step=at_step,
        bit=bit,
    )
    asyncio.run(_ask(options.settings(job=job, nats=nats), asked))


async def _ask(settings: Settings, asked: ChaosAsked) -> None:
    async with acting(settings) as (look, found, live):
        must_live(look, live=live)
        if found.spec is None or not found.spec.chaos:
            raise UsageError(
                f"the workers of job {look.job!r} do not obey: it was not started for that",
                hint="start it with `reknit run --allow-chaos …`, or with REKNIT_CHAOS=1",
            )
        known = sorted(member.worker for member in found.members)
        if asked.worker not in known:
            like = nearest(asked.worker, known)
            hint = f"did you mean {like!r}? " if like else ""
            raise UsageError(
                f"job {look.job!r} has no worker {asked.worker!r}", hint=f"{hint}there are: {', '.join(known)}"
            )
        await say(look, asked)
        when = f"in step {asked.at_step} or later" if asked.at_step >= 0 else "now"
        output.note(f"{asked.worker} is asked to flip a bit of its {asked.target}, {when}")
