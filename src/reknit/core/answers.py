"""Questions to services and their answers: core NATS, outside the log."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg

from reknit.core import log
from reknit.core.connection import Connection, NotAnswered
from reknit.core.errors import ControlPlaneUnreachable, ReknitError
from reknit.core.subjects import service_subject

_FAILED = "reknit-error"  # header of an answer that is an error text
_AGAIN = 0.05  # seconds between two questions to a service that is not there yet

_log = log.get("bus")


@dataclasses.dataclass(slots=True)
class Served:
    """How often a kind of question was answered.

    Attributes:
        subject: it is asked on.
        questions: answered, the failed ones included.
        failures: of them.
        last_failure: in words.
        seconds: that all answers took.
    """

    service: str
    verb: str
    subject: str
    questions: int = 0
    failures: int = 0
    last_failure: str = ""
    seconds: float = 0.0


class Answers:
    """Serves questions, each in a task of its own.

    Attributes:
        served: what is answered here.
    """

    def __init__(self, connection: Connection) -> None:
        self.served: list[Served] = []
        self._connection = connection
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, service: str, verb: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer questions to a service; see `Bus.serve`."""
        served = Served(service, verb, service_subject(service, verb))
        self.served.append(served)

        async def reply_to(message: Msg) -> None:
            headers = None
            began = time.monotonic()
            served.questions += 1
            try:
                data = await answer(message.data)
            except Exception as error:  # noqa: BLE001 - told to the asker
                _log.error("question not answered", service=service, verb=verb, exc_info=error)
                served.failures += 1
                served.last_failure = f"{type(error).__name__}: {error}"[:500]
                data, headers = b"", {_FAILED: served.last_failure}
            served.seconds += time.monotonic() - began
            try:
                await self._connection.send(message.reply, data, headers=headers)
            except ReknitError as error:
                _log.warning("answer not sent", service=service, verb=verb, reason=str(error))

        def on_message(message: Msg) -> None:
            if message.reply:
                task = asyncio.create_task(reply_to(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        await self._connection.listen(service_subject(service, verb), on_message, queue=service)

    async def stop(self) -> None:
        """Give up the questions that are not answered yet."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def ask_once(connection: Connection, service: str, verb: str, payload: bytes, timeout: float) -> bytes | None:
    """Ask a service that may not be there; see `Bus.ask`."""
    try:
        answer = await connection.ask(service_subject(service, verb), payload, timeout=timeout)
    except NotAnswered as problem:
        if problem.why == "nobody":
            return None
        raise
    return bytes(answer.data)


async def request(connection: Connection, service: str, verb: str, payload: bytes, timeout: float) -> bytes:
    """Ask a service; see `Bus.request`."""
    deadline = time.monotonic() + timeout
    subject = service_subject(service, verb)
    while True:
        await connection.wait_connected(deadline)
        try:
            left = max(deadline - time.monotonic(), 0.01)
            answer = await connection.ask(subject, payload, timeout=left)
        except NotAnswered as problem:
            if problem.why == "late" or time.monotonic() + _AGAIN > deadline:
                raise ControlPlaneUnreachable(
                    f"the service {service!r} does not answer at {connection.url}: {problem}",
                    hint=f"is it running? start it with `reknit service {service}`",
                ) from problem
            await asyncio.sleep(_AGAIN)
            continue
        failed = (answer.headers or {}).get(_FAILED)
        if failed:
            raise ControlPlaneUnreachable(f"the service {service!r} failed to answer {verb!r}: {failed}")
        return bytes(answer.data)
