"""What a service has decided to say: published one after the other, nothing twice while it is under way."""

from __future__ import annotations

import asyncio
import time

from reknit.core import log, telemetry
from reknit.core.bus import Bus
from reknit.core.decision import Out
from reknit.core.errors import ControlPlaneUnreachable, StaleWorld, Unauthorized
from reknit.core.events import kind_of

_DEADLINE = 5.0


class Publications:
    """The publications of one service; what fails is logged, and the reducer may ask again.

    Args:
        bus: where to.
        span: name of the trace span that each publication is.

    Attributes:
        under_way: job, kind and id of what was asked for and is neither published nor given up.
    """

    def __init__(self, bus: Bus, span: str) -> None:
        self._bus = bus
        self._span = span
        self._log = log.get("service")
        self._queue: asyncio.Queue[tuple[str, Out, str, str, float]] = asyncio.Queue()
        self.under_way: set[tuple[str, str, str]] = set()

    @property
    def waiting(self) -> int:
        """How many have not begun yet."""
        return self._queue.qsize()

    def ask(self, job: str, out: Out, trace: str, reason: str) -> bool:
        """Publish it, after all that was asked for before; False if the same is under way already.

        Args:
            job: whose event.
            out: what to publish.
            trace: traceparent of the input that led to it.
            reason: why, for the trace.
        """
        key = (job, kind_of(out.event), out.id)
        if key in self.under_way:
            return False
        self.under_way.add(key)
        until = float("inf") if out.within is None else time.monotonic() + out.within
        self._queue.put_nowait((job, out, trace, reason, until))
        return True

    async def run(self) -> None:
        """Publish, until cancelled."""
        while True:
            job, out, trace, reason, until = await self._queue.get()
            kind = kind_of(out.event)
            deadline = min(_DEADLINE, until - time.monotonic())
            try:
                if deadline <= 0.0:
                    raise ControlPlaneUnreachable("what it was decided on is too long ago")
                await self._publish(job, out, trace, reason, deadline)
            except StaleWorld as error:
                self._log.debug("somebody was faster", job=job, kind=kind, reason=str(error))
            except Unauthorized as error:
                self._log.error("forbidden", job=job, kind=kind, reason=str(error))
            except ControlPlaneUnreachable as error:
                self._log.warning("not published, will be decided again", job=job, kind=kind, reason=str(error))
            except Exception as error:  # noqa: BLE001 - one bad publication must not end all that follow
                self._log.error("not published", job=job, kind=kind, exc_info=error)
            finally:
                self.under_way.discard((job, kind, out.id))
                self._queue.task_done()

    async def all_done(self) -> None:
        """Wait until nothing is under way."""
        await self._queue.join()

    async def _publish(self, job: str, out: Out, trace: str, reason: str, deadline: float) -> None:
        attributes = {"reknit.job": job, "reknit.kind": kind_of(out.event), "reknit.id": out.id}
        if reason:
            attributes["reknit.reason"] = reason
        context = telemetry.context_from(trace)
        with telemetry.tracer().start_as_current_span(self._span, context=context, attributes=attributes):
            parent = telemetry.inject() or trace
            await self._bus.publish(
                job, out.event, id=out.id, expect_last=out.expect_last, trace=parent, deadline=deadline
            )
