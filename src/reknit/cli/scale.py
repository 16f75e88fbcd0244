"""`reknit scale N`: another number of workers, without stopping anything."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from reknit.core import setting_kinds as kinds
from reknit.core.errors import UsageError
from reknit.core.events import JobScaled
from reknit.core.headcount import headcount, spares_in_words, workers
from reknit.core.settings import Settings
from reknit.core.status import GONE

from . import options, output
from .acting import acting, must_live, say
from .app import app, verb


class _Negative(TyperCommand):
    """A command that takes `-3` for a number, to refuse it as one, and not for an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let negative numbers come last, behind `--`."""
        numbers = [arg for arg in args if re.fullmatch(r"-\d+", arg)]
        rest = [arg for arg in args if arg not in numbers]
        return super().parse_args(ctx, [*rest, "--", *numbers] if numbers else rest)


@app.command(cls=_Negative)
@verb
def scale(
    number: Annotated[
        str, typer.Argument(metavar="N", help="Active workers in all, over all nodes; spares not counted.")
    ],
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
) -> None:
    """Change the number of workers of a running job; agents start or drain workers to fit."""
    asyncio.run(_scale(options.settings(job=job, nats=nats), _number(number)))


def _number(said: str) -> int:
    try:
        return int(kinds.whole(1)(said))
    except kinds.Unfit as error:
        ends = "; to end the run: reknit stop" if said.strip() == "0" else ""
        raise UsageError(
            f"the number of workers {error}, not {said!r}",
            hint=f"say how many shall be active in all, over all nodes: reknit scale 4{ends}",
        ) from None


async def _scale(settings: Settings, number: int) -> None:
    async with acting(settings) as (look, found, live):
        must_live(look, live=live)
        slots = found.slots
        if slots and number > slots:
            raise UsageError(
                f"{number} workers are more than job {look.job!r} has slots: a step has {slots}, one a worker at least",
                hint=f"scale to {slots} at most; for more begin a run with more slots, and --spares for workers "
                "that stand ready",
            )
        await say(look, JobScaled(workers=number))
        if found.world is not None and found.world.members:
            now = headcount(found.world.members, slots)
        else:  # no ring has begun: those that are on their way
            now = workers(sum(w.state not in GONE and w.state != "refused" for w in found.workers.values()))
        spares = found.spec.spares if found.spec else 0
        more = f" and {spares_in_words(spares)}" if spares else ""
        output.note(f"job {look.job} is asked to go from {now} to {workers(number)}{more}")
