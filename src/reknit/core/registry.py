"""The registry: who is there and how well, in a bucket of the broker that forgets who does not renew.

    registration = bus.registry.register("service.shards.4f", lambda: [Entry(…)])   # returns at once, never raises
    …
    await registration.end()

    for seen in await bus.registry.read(): print(seen.entry.name, seen.health)
    await bus.registry.watch(lambda change: …)                                       # until cancelled

One key a process: an agent's card holds its workers too, so a node costs one small message every few seconds. The
bucket is an ordinary key-value bucket (`nats kv ls reknit-registry`), in memory: after a restart of the broker it is
made again by whoever comes first, and everybody writes its card anew. It has no markers for what expired: with them a
key cannot be made anew while the marker lasts. So a reader judges by age, by the broker's clock at first, then by its
own.

A card is renewed by compare-and-set on its own last revision. If somebody else has written the key, another process has
the name; that one is the newer, and this one stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from reknit.core import log
from reknit.core.connection import Connection, NotAnswered
from reknit.core.errors import ReknitError, Unauthorized
from reknit.core.jetstream import EXPECT_LAST, IN_USE, NO_PEERS, STALE, Refused, call, unpacked
from reknit.core.journal import Journal
from reknit.core.registry_entry import KEPT, KINDS, Card, Entry, Seen, decode, encode
from reknit.core.registry_watch import BUCKET, LIVE, PREFIX, Change, Watch, is_deleted
from reknit.core.stored import Stored

STREAM = f"KV_{BUCKET}"
EVERY = 5.0
"""Seconds between two renewals."""
_GROW_EVERY = 60.0
_ANSWER = 2.0
_FAREWELL = 0.5

_log = log.get("registry")


class _Conflict(ReknitError):
    """Somebody else wrote the key, or nobody has it any more."""


class Registry:
    """The bucket, through one connection."""

    def __init__(self, connection: Connection, replicas: int = 0) -> None:
        """Prepare.

        Args:
            connection: to the broker.
            replicas: on how many brokers of a cluster the bucket shall lie, as `Journal` means it.
        """
        self._connection = connection
        self._journal = Journal(connection, stream=STREAM, replicas=replicas)
        self._registrations: set[Registration] = set()
        self._grow_at = 0.0  # monotonic second of the next look whether the bucket lies on too few brokers
        connection.on_back.append(self._came_back)

    def register(self, key: str, tell: Callable[[], Sequence[Entry]], *, every: float = EVERY) -> Registration:
        """Keep a card in the registry from now on, in the background; whatever goes wrong with it is only logged.

        Args:
            key: of the card: tokens of A-Z a-z 0-9 _ - with dots between.
            tell: says what stands on it now; called about once a second, and written at once if it has changed.
            every: seconds between two renewals.
        """
        registration = Registration(self, self._connection, key, tell, every)
        self._registrations.add(registration)
        return registration

    async def stop(self) -> None:
        """End all registrations, each politely but in no time."""
        ending, self._registrations = list(self._registrations), set()
        await asyncio.gather(*(registration.end() for registration in ending))

    # -------------------------------------------------------------------------------------------------------- reading

    async def read(self, timeout: float = 5.0) -> list[Seen]:
        """Return all that is registered, with ages by the broker's clock, sorted by kind and name.

        Raises:
            ControlPlaneUnreachable: the broker does not answer in time.
        """
        cards = await self.cards(timeout)
        found = [Seen(key, entry, card.every, age) for key, (card, age) in cards.items() for entry in card.entries]
        return sorted(found, key=lambda s: (KINDS.index(s.entry.kind), s.entry.job, s.entry.name, s.entry.id))

    async def cards(self, timeout: float = 5.0) -> dict[str, tuple[Card, float]]:
        """Return key -> card and its age in seconds; see `read` for errors."""
        found: dict[str, tuple[Card, float]] = {}

        def take(stored: Stored) -> None:
            card = decode(stored.data)
            if card is not None and not is_deleted(stored):
                found[stored.subject.removeprefix(PREFIX)] = (card, stored.time)

        deadline = time.monotonic() + timeout
        await self._connection.wait_connected(deadline)
        now = await self._broker_now()
        if now is None:
            return {}
        await self._journal.read([f"{PREFIX}>"], take, deadline)
        return {key: (card, max(0.0, now - at)) for key, (card, at) in found.items()}

    async def watch(self, tell: Callable[[Change], None], *, tick: float = 0.5) -> None:
        """Tell what is there, and then each change, until cancelled; over reconnects and restarts of the broker.

        While the broker is away nothing is judged: nobody's renewals are heard.

        Raises:
            ControlPlaneUnreachable: the broker does not answer at the beginning.
        """
        await Watch(self._connection, self.cards, tell).run(tick)

    # ----------------------------------------------------------------------------------------------------- the bucket

    async def put(self, key: str, card: Card, revision: int | None) -> int:
        """Write a card and return its revision.

        Args:
            key: of the card.
            card: what to write.
            revision: refuse unless the key's newest revision is this one (0: there is none); None: whatever is there.

        Raises:
            Conflict: the key has another revision.
            NotAnswered: the broker does not answer now.
            ReknitError: it refuses.
        """
        ttl = max(1, round(KEPT * card.every))
        for _ in range(2):
            try:
                return await self._write(key, encode(card), {"Nats-TTL": f"{ttl}s"}, revision)
            except NotAnswered as error:
                if error.why != "nobody":
                    raise
            await self._create()
            revision = 0 if revision is not None else None
        raise NotAnswered(f"nobody stores {PREFIX}>", "nobody")

    async def grow(self) -> None:
        """Have the bucket on as many brokers as it shall be: a cluster may have had fewer when it was made.

        Looked at once a connection, and every minute while the cluster has too few brokers. Replicas are only added.

        Raises:
            NotAnswered: the broker does not answer now.
        """
        now = time.monotonic()
        if self._journal.replicas == 1 or now < self._grow_at:
            return
        self._grow_at = now + _GROW_EVERY
        try:
            found = await self._call("INFO")
        except Refused:
            return
        if self._journal.lacks_replicas(found["config"]):
            try:
                await self._call("UPDATE", {**found["config"], "num_replicas": self._journal.replicas})
            except Refused as refused:
                _log.debug("the bucket lies on fewer brokers than wanted", reason=str(refused))
                return
        self._grow_at = math.inf

    def _came_back(self) -> None:
        self._grow_at = 0.0  # it may be another bucket

    async def delete(self, key: str, revision: int) -> None:
        """Take a card out, unless somebody else has written it since; see `put` for errors."""
        await self._write(key, b"", {"KV-Operation": "DEL", "Nats-TTL": "60s"}, revision)

    async def _write(self, key: str, data: bytes, headers: dict[str, str], revision: int | None) -> int:
        if revision is not None:
            headers = {**headers, EXPECT_LAST: str(revision)}
        answer = await self._connection.ask(f"{PREFIX}{key}", data, headers=headers, timeout=_ANSWER)
        try:
            return int(unpacked(answer)["seq"])
        except Refused as refused:
            if refused.code in STALE:
                raise _Conflict(str(refused)) from None
            raise ReknitError(f"the broker refused {key}: {refused}") from None

    async def holder(self, key: str) -> tuple[str, int]:
        """Return the life that wrote a key last and its revision; ("", 0) if nobody has it."""
        stored = await self._journal.last(f"{PREFIX}{key}", time.monotonic() + _ANSWER)
        card = decode(stored.data) if stored is not None else None
        if stored is None:
            return "", 0
        return (card.life if card is not None else ""), stored.seq

    async def _create(self) -> None:
        config = {
            "name": STREAM,
            "description": "who is there, and how well",
            "subjects": [f"{PREFIX}>"],
            "storage": "memory",  # all of it is told again within seconds
            "retention": "limits",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "num_replicas": self._journal.replicas,
            "metadata": self._journal.replicas_told,
            "allow_rollup_hdrs": True,
            "allow_msg_ttl": True,
            "allow_direct": True,
            "deny_delete": True,
            # what is stored, and only that, is told to watchers; a subscription to the keys hears refused writes too
            "republish": {"src": ">", "dest": f"{LIVE}.>"},
        }
        refused = await self._made(config)
        if refused is not None and refused.code == NO_PEERS:
            refused = await self._made({**config, "num_replicas": 1})
            self._grow_at = 0.0
        if refused is not None and refused.code != IN_USE:  # in use: another one was faster
            raise ReknitError(f"the bucket {BUCKET} cannot be made: {refused}")

    async def _made(self, config: dict[str, Any]) -> Refused | None:
        """Make the bucket; return what the broker has against it, None if it is there now."""
        try:
            await self._call("CREATE", config)
        except Refused as refused:
            return refused
        return None

    async def _broker_now(self) -> float | None:
        """The broker's clock; None if there is no bucket."""
        try:
            return datetime.fromisoformat((await self._call("INFO"))["ts"]).timestamp()
        except Refused:
            return None

    async def _call(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await call(self._connection, f"STREAM.{verb}.{STREAM}", body, timeout=_ANSWER)


class Registration:
    """One card that is kept in the registry. Made by `Registry.register`."""

    def __init__(
        self, registry: Registry, connection: Connection, key: str, tell: Callable[[], Sequence[Entry]], every: float
    ) -> None:
        self._registry = registry
        self._connection = connection
        self._key = key
        self._tell = tell
        self._every = every
        self._life = secrets.token_hex(8)
        self._revision: int | None = None  # None: not written by us yet, whatever is there is an earlier life
        self._hurry = asyncio.Event()
        self._said = ""
        connection.on_back.append(self._came_back)
        self._task = asyncio.create_task(self._keep(), name=f"register {key}")

    @property
    def active(self) -> bool:
        """True while the card is kept; False once it was ended, is forbidden, or another process has the name."""
        return not self._task.done()

    async def end(self) -> None:
        """Take the card out, if the broker answers at once; else it is forgotten by itself."""
        if self._came_back in self._connection.on_back:
            self._connection.on_back.remove(self._came_back)
        running = not self._task.done()
        self._task.cancel()
        await asyncio.wait({self._task})
        if running and self._revision and self._connection.connected:
            with contextlib.suppress(ReknitError, TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await self._registry.delete(self._key, self._revision)

    def _came_back(self) -> None:
        self._hurry.set()

    async def _keep(self) -> None:
        written: tuple[Entry, ...] = ()
        due = 0.0
        while True:
            now = time.monotonic()
            try:
                entries = tuple(self._tell())
                if entries != written or now >= due or self._hurry.is_set():
                    self._hurry.clear()
                    await self._renew(Card(life=self._life, every=self._every, entries=entries))
                    await self._registry.grow()
                    written, due, self._said = entries, now + self._every * random.uniform(0.8, 1.0), ""
            except Unauthorized as error:
                _log.warning("not registered, and not tried again", key=self._key, reason=str(error))
                return
            except _Conflict as error:
                _log.warning("another process has this name: it is registered, this one is not", key=self._key)
                _log.debug("conflict", reason=str(error))
                return
            except Exception as error:  # noqa: BLE001 - what is registered must not suffer from being registered
                self._complain(error)
                written = ()
            await self._pause(min(1.0, self._every / 5))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)
            # all that come back with the broker would write in the same millisecond
            await asyncio.sleep(random.uniform(0.0, seconds))

    async def _renew(self, card: Card) -> None:
        try:
            self._revision = await self._registry.put(self._key, card, self._revision)
        except _Conflict:
            life, revision = await self._registry.holder(self._key)
            # ours: the answer to our last writing was lost; nobody's: it was forgotten while we were cut off
            if life not in {self._life, ""}:
                raise
            self._revision = await self._registry.put(self._key, card, revision)

    def _complain(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._said and self._connection.connected:
            self._said = text
            _log.debug("not registered now", key=self._key, reason=text)
