"""The service's process: the runner over the reducer, and the one thing it does itself: dialling.

The only asyncio of this folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import secrets
import socket
from typing import Any

from reknit.core import log, telemetry
from reknit.core.address import split
from reknit.core.bus import Bus
from reknit.core.errors import ReknitError, UsageError
from reknit.core.events import WorkerUnreachable
from reknit.core.service import run_service

from .decide import Dial, decide
from .view import View

NAME = "membership"
DIALS = (0.0, 0.004, 0.006, 0.009, 0.014, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15)
"""Seconds before each try: a dying process may still listen for a moment after its connection to the broker ended."""
DIAL_TIMEOUT = 0.5
"""Seconds without an answer until a host counts as not answering."""
_UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT})

_log = log.get(NAME)


async def main() -> None:
    """Run the service until SIGTERM; REKNIT_ENDPOINT says where the broker is."""
    proposer = f"{NAME}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
    dialler = Dialler(proposer)
    try:
        await run_service(
            NAME,
            initial=functools.partial(View, proposer=proposer),
            decide=decide,
            pulses=True,
            disconnects=True,
            act=dialler.act,
            span="verdict",
            lease=True,
        )
    finally:
        await dialler.close()


class Dialler:
    """Dials workers that may be gone, side by side, and publishes what it learns."""

    def __init__(self, observer: str) -> None:
        self._observer = observer
        self._under_way: set[asyncio.Task[None]] = set()

    async def act(self, bus: Bus, job: str, action: Any) -> None:
        """Begin a dial; returns at once, so that many workers are dialled at the same time."""
        task = asyncio.create_task(self._check(bus, job, action))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """End what is under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _check(self, bus: Bus, job: str, dial: Dial) -> None:
        # When the broker's word that a connection ended is the first evidence, the trace of the change begins here.
        parent = telemetry.context_from(dial.trace)
        with telemetry.tracer().start_as_current_span("membership.dial", parent) as span:
            found = await check(dial.address)
            span.set_attributes({"worker": dial.worker, "found": found[1] if found else "somebody listens"})
            if found is not None:
                await self._publish(bus, job, dial, *found)

    async def _publish(self, bus: Bus, job: str, dial: Dial, refused: bool, error: str) -> None:
        event = WorkerUnreachable(
            worker=dial.worker,
            incarnation=dial.incarnation,
            address=dial.address,
            refused=refused,
            error=error,
            observer=self._observer,
        )
        # Refused is final, so the first to say it says it for all; no answer may come and go.
        unique = "refused" if refused else secrets.token_hex(6)
        id_ = f"unreachable/{job}/{dial.worker}/{dial.incarnation}/{unique}"
        try:
            await bus.publish(job, event, id=id_)
        except ReknitError as problem:
            _log.warning("dial result not published", job=job, worker=dial.worker, reason=str(problem))


async def check(address: str) -> tuple[bool, str] | None:
    """Dial an address a few times.

    Returns:
        (True, error) if nobody listens there any more; (False, error) if host or path do not answer; None if somebody
        answers, or the address makes no sense, so nothing is known.
    """
    try:
        host, port = split(address)
    except UsageError:
        return None
    last: tuple[bool, str] | None = None
    for pause in DIALS:
        await asyncio.sleep(pause)
        last = await _dial(host, port)
        if last is not None:
            return last
    return last


async def _dial(host: str, port: int) -> tuple[bool, str] | None:
    try:
        async with asyncio.timeout(DIAL_TIMEOUT):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError as error:
        return True, os.strerror(error.errno or errno.ECONNREFUSED)
    except TimeoutError:
        return False, f"no answer within {DIAL_TIMEOUT:g} s"
    except OSError as error:
        if error.errno in _UNREACHABLE:
            return False, os.strerror(error.errno)
        return None  # our own trouble, such as too many open files, says nothing about the worker
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None
