"""Whether another agent of this node's name lives: the second one is refused by name, the first does not notice.

An agent answers for its name as long as it is connected, and asks before it joins. Nobody there, which the broker knows
at once, or nobody that answers in time (stopped, hung, cut off): the name is free, and whoever had it leaves as soon as
it reads that another one has joined. One that is on its way out is waited for.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec

from reknit.core.bus import Bus
from reknit.core.errors import ControlPlaneUnreachable, UsageError

PATIENCE = 2.0
"""Seconds that a living agent may take to answer; a free name costs none of them."""
AGAIN = 0.1
"""Seconds between two questions to one that leaves."""


class Owner(msgspec.Struct, frozen=True):
    """Who has a name.

    Attributes:
        who: in words.
        leaving: it is on its way out.
    """

    who: str
    leaving: bool = False


def _service(job: str) -> str:
    return f"agent-{job}"


async def refuse_if_taken(bus: Bus, job: str, node: str, say: Callable[[str], None]) -> None:
    """Return once nobody that lives has the node's name.

    Args:
        bus: ours.
        job: the job.
        node: the name.
        say: told that one who leaves is waited for.

    Raises:
        UsageError: somebody has it, and does not leave; the text says who and where.
    """
    said = False
    while (owner := await _owner(bus, job, node)) is not None:
        if not owner.leaving:
            raise UsageError(
                f"node {node!r} takes part in job {job!r} already: {owner.who}",
                hint="give this one another name with --node, or end that one first",
            )
        if not said:
            said = True
            say(f"waiting for the {owner.who}, which is on its way out")
        await asyncio.sleep(AGAIN)


async def _owner(bus: Bus, job: str, node: str) -> Owner | None:
    try:
        answer = await bus.ask(_service(job), node, timeout=PATIENCE)
        return msgspec.json.decode(answer, type=Owner) if answer is not None else None
    except (ControlPlaneUnreachable, msgspec.MsgspecError):
        return None  # it does not answer, or nothing of sense: then it does not keep the name


async def answer_for(bus: Bus, job: str, node: str, host: str, leaving: Callable[[], bool]) -> None:
    """Answer for the name from now on."""
    who = f"agent pid {os.getpid()} on {socket.gethostname()} ({host})"

    async def answer(_question: bytes) -> bytes:
        return msgspec.json.encode(Owner(who, leaving()))

    await bus.serve(_service(job), node, answer)
