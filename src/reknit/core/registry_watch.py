"""Watching the registry: what is there, and each change, as it comes and as it fails to come."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from nats.aio.msg import Msg

from reknit.core import log
from reknit.core.connection import Connection
from reknit.core.errors import ReknitError
from reknit.core.registry_entry import KEPT, Card, Seen, decode
from reknit.core.stored import Stored, live

BUCKET = "reknit-registry"
PREFIX = f"$KV.{BUCKET}."
LIVE = "live"
_DELETED = frozenset({"DEL", "PURGE"})
Read = Callable[[], Awaitable[Mapping[str, tuple[Card, float]]]]

_log = log.get("registry")


def is_deleted(stored: Stored) -> bool:
    """True if this is no card, but says that there is none any more."""
    return stored.headers.get("KV-Operation") in _DELETED


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What a watcher is told.

    Attributes:
        what: `there` (also of all that are there at first), `changed`, `left` by its own word, or `gone` (not renewed
            for so long that it is forgotten).
        seen: the entry, as it is now or was last.
    """

    what: Literal["there", "changed", "left", "gone"]
    seen: Seen


class Watch:
    """One watcher."""

    def __init__(self, connection: Connection, read: Read, tell: Callable[[Change], None]) -> None:
        """Prepare.

        Args:
            connection: to the broker.
            read: reads all cards, with their ages.
            tell: gets each change.
        """
        self._connection = connection
        self._read_cards = read
        self._tell = tell
        self._cards: dict[str, tuple[Card, float]] = {}
        """Key -> card, and our monotonic time of its newest renewal."""
        self._left: set[str] = set()
        self._told: dict[tuple[str, str, str], Seen] = {}
        self._stirred = asyncio.Event()
        self._reread = False

    async def run(self, tick: float) -> None:
        """See `Registry.watch`.

        Args:
            tick: seconds between two looks at ages.
        """
        listener = await self._connection.listen(f"{LIVE}.{PREFIX}>", self._heard)
        self._connection.on_back.append(self._came_back)
        try:
            await self._read()
            while True:
                if self._reread:
                    self._reread = False
                    try:
                        await self._read()
                    except ReknitError as error:
                        _log.debug("registry not read", reason=str(error))
                        self._reread = True
                if self._connection.connected:
                    self._judge(time.monotonic())
                self._stirred.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stirred.wait(), tick)
        finally:
            self._connection.on_back.remove(self._came_back)
            await listener.stop()

    def _came_back(self) -> None:
        now = time.monotonic()
        # While we were cut off nobody was heard: everybody gets its time anew.
        self._cards = {key: (card, now) for key, (card, _) in self._cards.items()}
        self._left.clear()
        self._reread = True
        self._stirred.set()

    async def _read(self) -> None:
        for key, (card, age) in (await self._read_cards()).items():
            at = time.monotonic() - age
            before = self._cards.get(key)
            # what was heard meanwhile is newer
            if key not in self._left and (before is None or before[1] <= at):
                self._cards[key] = (card, at)

    def _heard(self, message: Msg) -> None:
        stored = live(message)
        if stored is None or not stored.subject.startswith(PREFIX):
            return
        key = stored.subject.removeprefix(PREFIX)
        card = decode(stored.data)
        if is_deleted(stored):
            self._left.add(key)
            self._cards.pop(key, None)
        elif card is not None:
            self._left.discard(key)
            self._cards[key] = (card, time.monotonic())
        self._stirred.set()

    def _judge(self, now: float) -> None:
        there: dict[tuple[str, str, str], Seen] = {}
        for key, (card, at) in list(self._cards.items()):
            if now - at > KEPT * card.every:
                del self._cards[key]
                continue
            for entry in card.entries:
                there[key, entry.kind, entry.name] = Seen(key, entry, card.every, now - at)
        for name, seen in self._told.items():
            if name not in there:
                left = seen.key in self._left or seen.key in self._cards
                self._tell(Change("left" if left else "gone", seen))
        for name, seen in there.items():
            before = self._told.get(name)
            if before is None or (before.health, before.reason, before.entry) != (seen.health, seen.reason, seen.entry):
                self._tell(Change("there" if before is None else "changed", seen))
        self._told = there
