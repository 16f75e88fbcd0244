"""The webhook sink: each alert as a POST of JSON, in order, tried again for a while, never in anybody's way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator
from http.client import HTTPException
from typing import Any

import stamina

from reknit.core import log
from reknit.core.errors import UsageError

ENV = "REKNIT_ALERT_WEBHOOK"
MOST_WAITING = 1000
TIMEOUT = 5.0
_log = log.get("webhook")


class Webhook:
    """Posts to one address; what does not fit the queue is dropped and counted.

    Attributes:
        dropped: alerts that were never sent: the queue was full, or all tries failed.
    """

    def __init__(self, url: str, *, attempts: int = 5, timeout: float = 60.0) -> None:
        if url and not url.startswith(("http://", "https://")):
            raise UsageError(f"{ENV} is {url!r}", hint="it must begin with http:// or https://")
        self._url = url
        self._attempts = attempts
        self._timeout = timeout
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(MOST_WAITING)
        self.dropped = 0

    def put(self, id_: str, body: dict[str, Any]) -> None:
        """Send it soon; returns at once. `id_` is the same in every try, and for every monitor that sends it."""
        if not self._url:
            return
        try:
            self._queue.put_nowait((id_, body))
        except asyncio.QueueFull:
            self._drop("the queue is full")

    @contextlib.asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send while inside; at the end what waits gets a moment."""
        task = asyncio.create_task(self._send_all())
        try:
            yield
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._queue.join(), 1.0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send_all(self) -> None:
        while True:
            id_, body = await self._queue.get()
            try:
                retries = stamina.retry_context(
                    on=(OSError, HTTPException), attempts=self._attempts, timeout=self._timeout, wait_max=10.0
                )
                async for attempt in retries:
                    with attempt:
                        await asyncio.to_thread(self._post, id_, body)
            except (OSError, HTTPException, ValueError) as error:  # ValueError: an address that cannot be one
                self._drop(str(error))
            finally:
                self._queue.task_done()

    def _post(self, id_: str, body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/json", "Idempotency-Key": id_, "User-Agent": "reknit-monitor"}
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self._url, json.dumps(body).encode(), headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
            answer.read()

    def _drop(self, reason: str) -> None:
        self.dropped += 1
        _log.warning("alert not sent", url=self._url, dropped=self.dropped, reason=reason)
