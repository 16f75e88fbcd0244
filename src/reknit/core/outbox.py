"""The outbox: events to be stored without anybody waiting for it, in the order they were put in, over outages."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

from reknit.core import log
from reknit.core.connection import Forbidden
from reknit.core.errors import ControlPlaneUnreachable, ReknitError
from reknit.core.journal import Journal

CAPACITY = 100_000
_PAUSE = 1.0

_log = log.get("outbox")


@dataclass(frozen=True, slots=True)
class Letter:
    """One event on its way."""

    subject: str
    data: bytes
    headers: dict[str, str]


class Outbox:
    """Stores letters one after another, each exactly once.

    Attributes:
        dropped: letters that will never be stored, by cause: `full` (more than `CAPACITY` wait; the new one is
            refused), `forbidden` and `refused` (by the broker).
    """

    def __init__(self, journal: Journal, capacity: int = CAPACITY) -> None:
        self.dropped: Counter[str] = Counter()
        self._journal = journal
        self._capacity = capacity
        self._letters: deque[Letter] = deque()
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._task = asyncio.create_task(self._run(), name="outbox")

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, letter: Letter) -> None:
        """Put one in; if the outbox is full it is dropped, counted and logged."""
        if len(self._letters) >= self._capacity:
            self._drop(letter, "full", f"{self._capacity} wait already")
            return
        self._letters.append(letter)
        self._none.clear()
        self._some.set()

    async def flush(self, timeout: float) -> bool:
        """Wait until all is stored; False if it is not within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._none.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Stop at once; what is not stored is lost, and said so."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._letters:
            _log.warning("closed before all was stored", lost=len(self._letters))

    async def _run(self) -> None:
        while True:
            if not self._letters:
                self._none.set()
                self._some.clear()
                await self._some.wait()
            letter = self._letters[0]
            try:
                await self._journal.append(letter.subject, letter.data, letter.headers)
            except Forbidden as error:
                self._drop(letter, "forbidden", str(error))
            except ControlPlaneUnreachable as error:
                _log.warning("waiting for the broker", letters=len(self._letters), reason=str(error))
                await asyncio.sleep(_PAUSE)
                continue
            except ReknitError as error:
                self._drop(letter, "refused", str(error))
            except Exception as error:  # noqa: BLE001 - one letter must not hold up all that follow
                _log.error("letter not stored", subject=letter.subject, exc_info=error)
                self._drop(letter, "refused", str(error))
            self._letters.popleft()

    def _drop(self, letter: Letter, cause: str, reason: str) -> None:
        self.dropped[cause] += 1
        count = self.dropped[cause]
        if count == 1 or count % 1000 == 0:
            _log.error("event dropped", subject=letter.subject, cause=cause, dropped=count, reason=reason)
