"""Services as NATS knows them: answers to `$SRV.PING`, `$SRV.INFO`, `$SRV.STATS`, so that `nats micro ls` finds ours.

`nats.micro` subscribes with one client of the library and is deaf once that was given up and a new one made; what it
answers is made by it here, the listening is our connection's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from nats.aio.msg import Msg

from reknit.core import log
from reknit.core.answers import Answers
from reknit.core.connection import Connection
from reknit.core.errors import ReknitError
from reknit.core.inbox import new_inbox

_SEMVER = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_log = log.get("registry")


class Micro:
    """Announces this process as a service, and asks which others answer."""

    def __init__(self, connection: Connection, answers: Answers) -> None:
        self._connection = connection
        self._answers = answers
        self._task: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def announce(
        self,
        name: str,
        id: str,  # noqa: A002 - the name the protocol gives it
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        data: Callable[[], Any] | None = None,
    ) -> None:
        """Answer from now on, in the background; whatever goes wrong with it is only logged.

        Args:
            name: kind of service.
            id: of this one.
            version: a semantic version; any other text is told as 0.0.0 and in the metadata.
            description: what it does.
            metadata: what else is known of it.
            data: for each endpoint's statistics.
        """
        # here: workers and the command line have a bus too, and never need it
        from nats.micro.service import (  # noqa: PLC0415 - said above
            EndpointInfo,
            EndpointStats,
            ServiceInfo,
            ServicePing,
            ServiceStats,
        )

        shown = {"version": version, **(metadata or {})}
        proper = version if _SEMVER.fullmatch(version) else "0.0.0"
        started = datetime.now(UTC)

        def ping() -> Any:
            return ServicePing(id=id, name=name, version=proper, metadata=shown)

        def info() -> Any:
            endpoints = [
                EndpointInfo(name=s.verb, subject=s.subject, queue_group=s.service, metadata={})
                for s in self._answers.served
            ]
            return ServiceInfo(
                name=name, id=id, version=proper, description=description, endpoints=endpoints, metadata=shown
            )

        def stats() -> Any:
            endpoints = [
                EndpointStats(
                    name=s.verb,
                    subject=s.subject,
                    queue_group=s.service,
                    num_requests=s.questions,
                    num_errors=s.failures,
                    last_error=s.last_failure,
                    processing_time=int(s.seconds * 1e9),
                    average_processing_time=int(s.seconds * 1e9 / s.questions) if s.questions else 0,
                    data=data() if data is not None else None,
                )
                for s in self._answers.served
            ]
            return ServiceStats(id=id, name=name, version=proper, started=started, endpoints=endpoints, metadata=shown)

        self._task = asyncio.create_task(self._listen(name, id, {"PING": ping, "INFO": info, "STATS": stats}))

    async def _listen(self, name: str, id: str, answers: Mapping[str, Callable[[], Any]]) -> None:  # noqa: A002
        try:
            for verb, answer in answers.items():
                for whom in ("", f".{name}", f".{name}.{id}"):
                    await self._connection.listen(f"$SRV.{verb}{whom}", self._answering(answer))
        except ReknitError as error:
            _log.warning("does not answer $SRV questions", reason=str(error))

    def _answering(self, answer: Callable[[], Any]) -> Callable[[Msg], None]:
        def on_message(message: Msg) -> None:
            if message.reply:
                sending = asyncio.create_task(self._send(message.reply, answer()))
                self._sending.add(sending)
                sending.add_done_callback(self._sending.discard)

        return on_message

    async def _send(self, reply: str, said: Any) -> None:
        try:
            await self._connection.send(reply, json.dumps(said.to_dict()).encode())
        except ReknitError as error:
            _log.debug("answer not sent", reason=str(error))

    async def stop(self) -> None:
        """Answer no more."""
        tasks = {task for task in (self._task, *self._sending) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def ask(self, seconds: float, expect: frozenset[str] = frozenset()) -> dict[str, dict[str, Any]]:
        """Ask all services of this account who is there.

        Args:
            seconds: to wait for answers.
            expect: ids; once all of these have answered, the others have had their time too.

        Returns:
            Id -> its answer, with `seconds` that it took.

        Raises:
            ControlPlaneUnreachable: the broker is away.
        """
        found: dict[str, dict[str, Any]] = {}
        enough = asyncio.Event()
        began = time.monotonic()

        def on_message(message: Msg) -> None:
            try:
                said = json.loads(message.data)
                found[str(said["id"])] = {**said, "seconds": time.monotonic() - began}
            except (ValueError, KeyError, TypeError):
                return  # nobody is there (a status without data), or it is no answer of this protocol
            if expect and expect <= found.keys():
                enough.set()

        inbox = new_inbox()
        listener = await self._connection.listen(inbox, on_message)
        try:
            began = time.monotonic()
            await self._connection.send("$SRV.PING", reply=inbox)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(enough.wait(), seconds)
        finally:
            await listener.stop()
        return found
