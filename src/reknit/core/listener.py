"""One subscription of a connection; it outlives the client library's object, which ends with the library's client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from reknit.core import log

PENDING_MESSAGES = 64 * 1024
PENDING_BYTES = 64 * 1024 * 1024
"""What may wait for one listener; more is dropped, counted, and the listener is told."""

_log = log.get("bus")


class Listener:
    """Calls back for every message on one subject, one after another. Made by `Connection.listen`.

    Attributes:
        subject: what is listened to.
        on_drop: called when messages were dropped because this listener was too slow.
    """

    def __init__(
        self,
        subject: str,
        callback: Callable[[Msg], None],
        forget: Callable[[Listener], None],
        *,
        queue: str = "",
        bounded: bool = True,
    ) -> None:
        """Prepare.

        Args:
            subject: what to listen to; may have wildcards.
            callback: gets each message; if it raises, that is logged and the next message comes.
            forget: called with this listener when it is stopped.
            queue: of all listeners with the same queue one gets each message; "": everybody does.
            bounded: drop what comes when too much waits already.
        """
        self.subject = subject
        self.on_drop: Callable[[], None] | None = None
        self._callback = callback
        self._forget = forget
        self._queue = queue
        self._bounded = bounded
        self._subscription: Subscription | None = None

    async def begin(self, client: Client) -> None:
        """Subscribe with a client; called by the connection, once for each client that it makes."""
        self._subscription = await client.subscribe(
            self.subject,
            queue=self._queue,
            cb=self._heard,
            pending_msgs_limit=PENDING_MESSAGES if self._bounded else 0,
            pending_bytes_limit=PENDING_BYTES if self._bounded else 0,
        )

    def is_served_by(self, subscription: Subscription) -> bool:
        """True if this subscription of the client library is ours."""
        return self._subscription is subscription

    @property
    def pending(self) -> int:
        """Messages that have come and wait to be called back for."""
        return self._subscription.pending_msgs if self._subscription is not None else 0

    async def stop(self) -> None:
        """Stop listening; nothing is called back afterwards."""
        self._forget(self)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(nats.errors.Error):  # it ended with its connection
                await subscription.unsubscribe()

    async def _heard(self, message: Msg) -> None:
        if self._subscription is None:
            return
        try:
            self._callback(message)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - its own fault must not make it deaf
            # A callback that is no coroutine cannot be cancelled: the error is its own, and would end the subscription.
            _log.error("listener failed", subject=message.subject, exc_info=error)
