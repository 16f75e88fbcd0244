"""One NATS connection, with what the client library leaves open closed once and for all.

Used like this: `connection = await Connection.open(url, user, password, name=…, timeout=…)`, then `ask` (one question,
one answer), `send`, `listen`. It comes back by itself whenever the broker does, for ever. What it adds to the client
library:

* a question in flight fails at once when the connection breaks, and when the broker forbids its subject (the library
  lets both wait for the whole timeout);
* `listen` raises when the broker forbids the subject (the library only tells an error callback);
* the first connect is bounded and says what was wrong; refused credentials are final;
* the library gives a connection up for good after some errors; this makes a new one and listens again;
* messages dropped because a listener was too slow are counted by subject, and the listener is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from reknit.core import log
from reknit.core.errors import ControlPlaneUnreachable, ReknitError, Unauthorized
from reknit.core.inbox import Inbox
from reknit.core.listener import Listener
from reknit.core.servers import RECONNECT_WAIT, choose, connection_id, shown

CONNECT_TIMEOUT = 2
PING_INTERVAL = 2
PINGS_OUTSTANDING = 2
_SILENT_LIMIT = 15.0  # seconds without any attempt to reconnect: the library's task has died
_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')

_log = log.get("bus")


class NotAnswered(ControlPlaneUnreachable):
    """A question got no answer.

    Attributes:
        why: `lost`: the connection broke; `late`: no answer in time; `nobody`: nobody listens there.
    """

    def __init__(self, message: str, why: Literal["lost", "late", "nobody"]) -> None:
        super().__init__(message)
        self.why = why


class Forbidden(Unauthorized):
    """The broker lets us in, but forbids this one subject."""


class Connection:
    """One connection. Not thread-safe: everything on the loop that opened it.

    Attributes:
        url: where to, without credentials.
        name: how the broker lists us.
        dropped: messages dropped because a listener was too slow, by subject of the listener.
        on_lost: called whenever the connection breaks.
        on_back: called whenever it is back and all listeners are listening again.
    """

    def __init__(self, url: str, user: str, password: str, name: str) -> None:
        self.url = shown(url)
        self.name = name
        self.dropped: Counter[str] = Counter()
        self.on_lost: list[Callable[[], None]] = []
        self.on_back: list[Callable[[], None]] = []
        self._urls = [part.strip() for part in url.split(",")]
        self._user = user
        self._password = password
        self._client = Client()
        self._inbox = Inbox()
        self._listeners: set[Listener] = set()
        self._denied: dict[str, str] = {}
        self._up = asyncio.Event()
        self._closing = False
        self._last_error = ""
        self._last_attempt = 0.0
        self._refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------- life

    @classmethod
    async def open(cls, url: str, user: str, password: str, *, name: str, timeout: float) -> Connection:
        """Connect.

        Raises:
            ControlPlaneUnreachable: no connection within `timeout` seconds; the text names the URL and the last error.
            Unauthorized: the broker refused the credentials (at once, not after the timeout).
        """
        connection = cls(url, user, password, name)
        inbox = connection._inbox
        connection._listeners.add(Listener(inbox.subject, inbox.take, connection._listeners.discard, bounded=False))
        try:
            await connection._connect(timeout)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _connect(self, timeout: float) -> None:
        client = self._client
        deadline = time.monotonic() + timeout
        self._refused = asyncio.get_running_loop().create_future()
        connecting = asyncio.create_task(self._dial(client))
        either: set[asyncio.Future[Any]] = {connecting, self._refused}
        try:
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if self._refused.done():
                raise Unauthorized(
                    f"the broker at {self.url} refused the credentials: {self._refused.result()}",
                    hint="check user and password, or the endpoint file of the job",
                )
            if not connecting.done():
                raise self._unreachable(f"no answer within {timeout:g} s")
            connecting.result()
        except (OSError, nats.errors.Error, ValueError) as error:
            raise self._unreachable(str(error)) from error
        finally:
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=1.0)
        try:
            for listener in list(self._listeners):
                await listener.begin(client)
            await self._prove(deadline)
        except NotAnswered as error:
            raise self._unreachable(str(error)) from error
        self._up.set()  # not before all listen: who waits for it may rely on hearing

    async def _prove(self, deadline: float) -> None:
        """Return when the broker has answered once: the library calls a handshake that was cut off a connection."""
        while True:
            try:
                await self.round_trip(max(deadline - time.monotonic(), 0.1))
                return
            except NotAnswered as error:
                if error.why != "lost" or time.monotonic() + RECONNECT_WAIT > deadline:
                    raise
                await asyncio.sleep(RECONNECT_WAIT)  # it broke at once: the library connects anew meanwhile

    async def _dial(self, client: Client) -> None:
        def of_this(callback: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
            async def call(*args: Any) -> None:
                if client is self._client:  # else it was given up already
                    await callback(*args)

            return call

        await client.connect(
            self._urls,
            name=self.name,
            user=self._user or None,
            password=self._password or None,
            error_cb=of_this(self._on_error),
            disconnected_cb=of_this(self._on_disconnected),
            reconnected_cb=of_this(self._on_reconnected),
            closed_cb=of_this(self._on_closed),
            connect_timeout=CONNECT_TIMEOUT,
            reconnect_time_wait=RECONNECT_WAIT,  # type: ignore[arg-type] # seconds; a fraction works
            max_reconnect_attempts=-1,
            ping_interval=PING_INTERVAL,
            max_outstanding_pings=PINGS_OUTSTANDING,
            reconnect_to_server_handler=choose,
            # Unbounded here: what is sent while the connection is away is bounded by those who send.
            pending_size=1 << 30,
        )

    async def close(self) -> None:
        """End the connection; questions in flight fail."""
        self._closing = True
        self._up.clear()
        for task in list(self._tasks):
            task.cancel()
        self._fail_questions("the connection was closed")
        await _end(self._client)

    @property
    def connected(self) -> bool:
        """True while the connection stands."""
        return self._up.is_set() and self._client.is_connected

    @property
    def client_id(self) -> int:
        """The broker's number for this connection; another one after each reconnect."""
        return connection_id(str(self._server.get("server_id", "")), self._client.client_id or 0)

    @property
    def clustered(self) -> bool:
        """True if the broker we are connected to is one of a cluster."""
        return bool(self._server.get("cluster"))

    @property
    def _server(self) -> dict[str, Any]:
        return self._client._server_info or {}  # noqa: SLF001 - the library shows only parts of it

    async def wait_connected(self, deadline: float) -> None:
        """Return once the connection stands.

        Args:
            deadline: on the monotonic clock.

        Raises:
            ControlPlaneUnreachable: it does not stand by then.
            Unauthorized: the broker is there, but refuses our credentials.
        """
        while not self.connected:
            if self._closing:
                raise self._unreachable("the connection was closed")
            if self._refused.done():
                raise Unauthorized(f"the broker at {self.url} refuses the credentials: {self._refused.result()}")
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._unreachable("the connection is down")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._up.wait(), min(left, 0.25))
            if self._up.is_set() and not self._client.is_connected:
                await asyncio.sleep(0.005)  # the library already knows, its callback comes in a moment

    # ---------------------------------------------------------------------------------------------- messages

    async def ask(
        self, subject: str, payload: bytes = b"", *, headers: dict[str, str] | None = None, timeout: float = 2.0
    ) -> Msg:
        """Send one question and return the first answer.

        Raises:
            NotAnswered: no answer in time, nobody there, or the connection broke.
            Forbidden: the broker forbids the subject.
            ReknitError: the message is larger than the broker takes.
        """
        try:
            with self._inbox.question(subject) as (reply, future):
                if not self.connected:
                    raise NotAnswered(f"the connection to {self.url} is down", "lost")
                await self.send(subject, payload, reply=reply, headers=headers)
                async with asyncio.timeout(timeout):
                    answer = await future
        except TimeoutError:
            raise NotAnswered(f"no answer on {subject} within {timeout:g} s", "late") from None
        if answer.headers and answer.headers.get("Status") == "503":
            raise NotAnswered(f"nobody answers on {subject}", "nobody")
        return answer

    async def send(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send one message, unacknowledged.

        Raises:
            NotAnswered: there is no connection.
            ReknitError: the message is larger than the broker takes.
        """
        try:
            # A copy: the library may write into the headers.
            await self._client.publish(subject, payload, reply=reply, headers=dict(headers) if headers else None)
        except nats.errors.MaxPayloadError as error:
            limit = self._client.max_payload
            raise ReknitError(f"a message of {len(payload)} bytes on {subject} is larger than {limit}") from error
        except nats.errors.Error as error:
            raise NotAnswered(f"the connection to {self.url} is down: {error}", "lost") from error

    async def listen(
        self, subject: str, callback: Callable[[Msg], None], *, queue: str = "", bounded: bool = True
    ) -> Listener:
        """Call back for every message on a subject, one after another; goes on after every reconnect.

        Raises:
            Forbidden: the broker forbids the subject.
        """
        listener = Listener(subject, callback, self._listeners.discard, queue=queue, bounded=bounded)
        self._listeners.add(listener)
        try:
            await listener.begin(self._client)
            if self.connected:
                await self.round_trip(2.0)  # afterwards the broker knows of us, or has complained
        except (NotAnswered, nats.errors.Error):
            pass  # broken meanwhile: the library or `_revive` subscribes again
        if self._denied.pop(f"subscription {subject.lower()}", None):
            await listener.stop()
            raise Forbidden(f"the broker at {self.url} forbids listening to {subject}")
        return listener

    async def round_trip(self, timeout: float) -> None:
        """Return when the broker has handled all that was sent before.

        Raises:
            NotAnswered: it has not in time.
        """
        try:
            with self._inbox.question("") as (reply, future):
                await self.send(reply)
                async with asyncio.timeout(timeout):
                    await future
        except TimeoutError:
            raise NotAnswered(f"no answer from {self.url} within {timeout:g} s", "late") from None

    def _fail_questions(self, why: str) -> None:
        self._inbox.fail(lambda: NotAnswered(f"{self.url}: {why}", "lost"))

    # --------------------------------------------------------------------------------- the library's callbacks

    async def _on_error(self, error: Exception) -> None:
        self._last_attempt = time.monotonic()
        text = str(error)
        denied = _DENIED.search(text.lower())
        if isinstance(error, nats.errors.SlowConsumerError):
            self._count_drop(error.sub)
        elif denied:
            self._deny(denied[1], denied[2], text)
        elif "authorization violation" in text.lower() or isinstance(error, nats.errors.AuthorizationError):
            if not self._refused.done():
                self._refused.set_result(text.removeprefix("nats: "))
        else:
            self._last_error = f"{type(error).__name__}: {error}" if text else type(error).__name__

    def _deny(self, what: str, subject: str, text: str) -> None:
        _log.error("the broker forbids it", what=what, subject=subject)
        if what == "subscription":
            self._denied[f"subscription {subject}"] = text
        else:
            error = f"the broker at {self.url} forbids publishing to {subject}"
            self._inbox.fail(lambda: Forbidden(error), about=subject)

    def _count_drop(self, subscription: Subscription) -> None:
        self.dropped[subscription.subject] += 1
        for listener in self._listeners:
            if listener.is_served_by(subscription):
                if self.dropped[subscription.subject] == 1:
                    _log.warning("too slow: messages dropped", subject=listener.subject)
                if listener.on_drop:
                    listener.on_drop()

    async def _on_disconnected(self) -> None:
        self._last_attempt = time.monotonic()
        was_up = self._up.is_set()
        self._up.clear()
        self._fail_questions("the connection broke")
        if was_up and not self._closing:
            if self._watching is None or self._watching.done():
                self._watching = self._keep(self._watch())
            for call in self.on_lost:
                call()

    async def _on_reconnected(self) -> None:
        if self._closing:
            return
        self._refused = asyncio.get_running_loop().create_future()
        self._up.set()
        for call in self.on_back:
            call()

    async def _on_closed(self) -> None:
        if not self._closing:
            self._keep(self._revive("the client library closed the connection"))

    async def _watch(self) -> None:
        """While the connection is away: see that somebody works at it."""
        while not self._up.is_set() and not self._closing:
            await asyncio.sleep(1.0)
            if not self._up.is_set() and time.monotonic() - self._last_attempt > _SILENT_LIMIT:
                await self._revive("the client library stopped reconnecting")
                return

    async def _revive(self, why: str) -> None:
        _log.warning("connecting anew", url=self.url, reason=why, error=self._last_error)
        self._last_attempt = time.monotonic()
        old, self._client = self._client, Client()
        await _end(old)
        pause = RECONNECT_WAIT
        while not self._closing:
            try:
                await self._connect(30.0)
            except ControlPlaneUnreachable as error:
                self._up.clear()
                self._last_error = str(error)
                old, self._client = self._client, Client()
                await _end(old)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 5.0)
                continue
            for call in self.on_back:
                call()
            return

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _unreachable(self, what: str) -> ControlPlaneUnreachable:
        last = f" ({self._last_error})" if self._last_error and self._last_error not in what else ""
        return ControlPlaneUnreachable(
            f"the broker at {self.url} cannot be reached: {what}{last}",
            hint="is it running, and is the address right?",
        )


async def _end(client: Client) -> None:
    try:
        await asyncio.wait_for(client.close(), 2.0)
    except Exception as error:  # noqa: BLE001 - closing a client that never connected trips over its own assertions
        _log.debug("closing a connection", exc_info=error)
