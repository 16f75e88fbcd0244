"""What verbs that act on a living job share: they say it to the job's log; who has to do it hears it there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from reknit.core.errors import UsageError
from reknit.core.events import Event
from reknit.core.settings import Settings
from reknit.core.status import Status

from .look import Look, looking
from .status import status_of


@contextlib.asynccontextmanager
async def acting(settings: Settings) -> AsyncIterator[tuple[Look, Status, bool]]:
    """Reach a job whose run is not over: the job, its state, and whether somebody runs it.

    Raises:
        UsageError: no such job, or its run is over.
    """
    async with looking(settings) as look:
        found, live = await status_of(look)
        if found.spec is None:
            raise UsageError(f"job {look.job!r} was never submitted")
        if found.finished is not None:
            raise UsageError(f"job {look.job!r} is over: {found.finished.outcome}")
        yield look, found, live


async def say(look: Look, event: Event) -> None:
    """Store what is asked for.

    Raises:
        ControlPlaneUnreachable: the broker did not acknowledge it.
    """
    await look.bus.publish(look.job, event)


def must_live(look: Look, *, live: bool) -> None:
    """See that there is somebody who can do what is asked.

    Raises:
        UsageError: nobody runs the job.
    """
    if not live:
        raise UsageError(
            f"nobody runs job {look.job!r} now: it was interrupted",
            hint=f"go on with it by the same `reknit run --job {look.job} …`, or end it: reknit stop --job {look.job}",
        )
