"""Questions in flight on one connection, and their answers, by one subscription for all."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator

from nats.aio.msg import Msg


def new_inbox() -> str:
    """Return a subject that nobody else uses."""
    return f"_INBOX.{secrets.token_hex(11)}"


class Inbox:
    """Ties answers to questions.

    Attributes:
        subject: where all answers arrive; whoever owns this listens there and hands each message to `take`.
    """

    def __init__(self) -> None:
        self._prefix = new_inbox()
        self.subject = f"{self._prefix}.*"
        self._next = 0
        self._open: dict[str, tuple[str, asyncio.Future[Msg]]] = {}

    @contextlib.contextmanager
    def question(self, about: str) -> Iterator[tuple[str, asyncio.Future[Msg]]]:
        """Open a question about a subject: gives where its answer must go, and the future of it."""
        token = str(self._next)
        self._next += 1
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._open[token] = (about.lower(), future)
        try:
            yield f"{self._prefix}.{token}", future
        finally:
            del self._open[token]
            if future.done() and not future.cancelled():
                future.exception()  # seen, even when the question was given up meanwhile

    def take(self, message: Msg) -> None:
        """Give an answer to its question, if that is still open."""
        question = self._open.get(message.subject.rpartition(".")[2])
        if question is not None and not question[1].done():
            question[1].set_result(message)

    def fail(self, make: Callable[[], Exception], about: str | None = None) -> None:
        """Fail all open questions, or those about one subject (in lower case)."""
        for subject, future in self._open.values():
            if not future.done() and about in (None, subject):
                future.set_exception(make())
