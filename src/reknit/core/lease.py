"""A lease: of several processes of one service, the one that acts; the others stand by and take over when it is gone.

    lease = Lease(connection, "membership", wake=...)
    await lease.start()         from now on we want it
    lease.held                  do we act?
    lease.notice(client_id)     the broker said that this connection ended

One key of a key-value bucket; a write names the revision that it follows (compare-and-set), so exactly one of several
claimants wins. The holder renews it three times per `TTL`. A standby takes it over

* at once when the broker says that the holder's connection ended (milliseconds after a SIGKILL);
* within `LOOK` when nobody listens any more where the holder answers, which the broker knows without waiting for it;
* when the revision has not changed for `TTL` and the holder does not answer either (it is stopped, hangs, is cut off).

Times are each process's own monotonic clock: what is compared is whether a revision changed, never what a clock shows.
The server's own expiry of keys is not used: it knows whole seconds only, and leaves markers that block the next create.
A holder that could not renew for `TTL` does not act any more, before anybody else may.

It saves work, no more: what is decided is safe without it, since worlds are appended with compare-and-set and other
events carry ids that name the decision. So where a broker gives us no bucket, or lost it, we act without one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec

from reknit.core import log
from reknit.core.answers import Answers, ask_once
from reknit.core.connection import Connection, NotAnswered
from reknit.core.errors import ReknitError, Unauthorized
from reknit.core.jetstream import EXPECT_LAST, NO_PEERS, NO_STREAM, NOT_FOUND, NOT_NOW, STALE, Refused, call, unpacked

BUCKET = "reknit"
TTL = 3.0
"""Seconds that a holder which neither renews nor answers keeps the lease."""
RENEW = TTL / 3
LOOK = 0.25
"""Seconds between two looks of a standby at the holder."""
ANSWER = 0.5
"""Seconds that a holder may take to answer."""
BLIND_AFTER = 12.0
"""Seconds of a standing connection over which no lease can be had; an election among brokers takes 4 to 9."""
_MARGIN = 0.5
_ASK = 2.0

_log = log.get("lease")


class Claim(msgspec.Struct, frozen=True):
    """Content of the key.

    Attributes:
        holder: unique name of the process.
        client_id: of its connection to the broker, as disconnect notices name it.
        where: pid and host, for people.
    """

    holder: str
    client_id: int = 0
    where: str = ""


class Lease:
    """One claimant. Not thread-safe: everything on the loop of its connection.

    Attributes:
        me: unique name of this claimant.
        other: who holds it, if that is somebody else.
        takeovers: how often it was taken from another holder here.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        taken: Callable[[], None] = lambda: None,
        replicas: Callable[[], int] = lambda: 1,
    ) -> None:
        """Prepare.

        Args:
            connection: to the broker.
            name: of what is leased.
            taken: called when the lease has become ours.
            replicas: on how many servers the bucket shall lie, asked when it is made.
        """
        self.me = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.other: Claim | None = None
        self.takeovers = 0
        self._connection = connection
        self._name = name
        self._subject = f"$KV.{BUCKET}.lease-{name}"
        self._taken = taken
        self._replicas = replicas
        self._answers = Answers(connection)
        self._revision = 0
        self._changed = 0.0  # when the revision was seen to change last
        self._renewed: float | None = None  # when we began the newest renewal that was accepted, None: not ours
        self._ended = ""  # the other's claim whose connection the broker said to have ended
        self._trouble: float | None = None  # since when nothing works although we are connected
        self._without = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def held(self) -> bool:
        """True while we are the one that acts."""
        if self._without:
            return True
        return self._renewed is not None and time.monotonic() - self._renewed < TTL - _MARGIN

    async def start(self) -> None:
        """Want the lease from now on; returns without waiting for it."""
        try:
            await self._answers.serve(f"lease-{self._name}", _token(self.me), self._answer)
        except Unauthorized as error:
            self._go_without(str(error))
            return
        self._task = asyncio.create_task(self._run(), name=f"lease {self._name}")

    async def stop(self) -> None:
        """Give it up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._renewed = None
        await self._answers.stop()

    def notice(self, client_id: int) -> None:
        """A connection to the broker ended."""
        if self.other is not None and client_id and client_id == self.other.client_id:
            self._ended = _key(self.other)
            self._wake.set()

    def hurry(self) -> None:
        """Something is to be done: if the lease is ours and has only lapsed (we did not run), renew it now."""
        if self._renewed is not None:
            self._wake.set()

    # ------------------------------------------------------------------------------------------------------- parts

    async def _answer(self, _question: bytes) -> bytes:
        return self.me.encode()

    async def _run(self) -> None:
        while True:
            pause = LOOK
            try:
                pause = RENEW if await self._turn() else LOOK
                self._trouble, self._without = None, False
            except Unauthorized as error:
                self._go_without(str(error))
                return
            except Refused as error:
                if error.status != NOT_NOW:
                    self._go_without(str(error))
                    return
                self._in_trouble(str(error))
            except ReknitError as error:
                self._in_trouble(str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
            self._wake.clear()

    def _in_trouble(self, why: str) -> None:
        if not self._connection.connected:
            self._trouble = None  # the broker is away: nobody acts, and nothing could be said anyway
            return
        now = time.monotonic()
        self._trouble = now if self._trouble is None else self._trouble
        if not self.held and now - self._trouble > BLIND_AFTER:
            self._go_without(why)

    def _go_without(self, why: str) -> None:
        _log.warning("no lease: acting without one, which is safe, but two of a kind do everything twice", reason=why)
        self._without = True
        self._taken()

    async def _turn(self) -> bool:
        """One look at the lease, and what follows from it; True if it is ours now."""
        if self._renewed is not None:
            return await self._claim()
        found = await self._read()
        if found is None:
            return await self._claim()
        revision, claim = found
        if revision != self._revision:
            self._revision, self._changed, self.other = revision, time.monotonic(), claim
        if await self._is_free(claim):
            return await self._claim()
        return False

    async def _is_free(self, claim: Claim) -> bool:
        if self._ended == _key(claim):
            return True
        try:
            answer = await ask_once(self._connection, f"lease-{self._name}", _token(claim.holder), b"", ANSWER)
        except NotAnswered:
            return time.monotonic() - self._changed >= TTL
        return answer is None

    async def _claim(self) -> bool:
        """Take or renew it by compare-and-set; False if somebody else was faster."""
        before, began = self.other, time.monotonic()
        mine = Claim(self.me, self._connection.client_id, f"pid {os.getpid()} on {socket.gethostname()}")
        headers = {EXPECT_LAST: str(self._revision)}
        try:
            answer = await self._connection.ask(
                self._subject, msgspec.json.encode(mine), headers=headers, timeout=min(_ASK, TTL - _MARGIN)
            )
            revision = int(unpacked(answer)["seq"])
        except NotAnswered as problem:
            if problem.why == "nobody":
                await self._make()
                self._revision = 0
                self._wake.set()
            raise
        except Refused as refused:
            if refused.code not in STALE:
                raise
            return await self._lost()
        new, lapsed = self._renewed is None, not self.held
        self._revision, self._renewed, self.other = revision, began, None
        if new:
            self.takeovers += before is not None
            _log.info("acting", lease=self._name, after=before.where if before else "")
        if lapsed:
            self._taken()
        return True

    async def _lost(self) -> bool:
        """Another write came first: our own whose answer was lost, or somebody else's."""
        found = await self._read()
        self._revision = found[0] if found else 0
        if found is not None and found[1].holder == self.me:
            return await self._claim()
        if self._renewed is not None:
            _log.warning("not acting any more", lease=self._name, now=found[1].where if found else "")
        self._renewed = None
        self._changed, self.other = time.monotonic(), found[1] if found else None
        return False

    async def _read(self) -> tuple[int, Claim] | None:
        """Revision and content of the key, None if there is none; the bucket is made if it is missing."""
        try:
            found = (await self._call(f"STREAM.MSG.GET.KV_{BUCKET}", {"last_by_subj": self._subject}))["message"]
        except Refused as refused:
            if refused.code not in NOT_FOUND:
                raise
            if refused.code == NO_STREAM:
                await self._make()
            self._revision = 0
            return None
        try:
            claim = msgspec.json.decode(base64.b64decode(found.get("data", "")), type=Claim)
        except msgspec.MsgspecError:
            claim = Claim("nobody")  # written by hand; nobody listens under that name
        return int(found["seq"]), claim

    async def _make(self) -> None:
        config = {
            "name": f"KV_{BUCKET}",
            "description": "who acts, of several of a kind",
            "subjects": [f"$KV.{BUCKET}.>"],
            "retention": "limits",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "num_replicas": self._replicas(),
            # Renewed every second: not worth a write to disk. After a restart of the broker it is made and taken anew.
            "storage": "memory",
        }
        try:
            await self._call(f"STREAM.CREATE.KV_{BUCKET}", config)
        except Refused as refused:
            if refused.code == NO_PEERS and config["num_replicas"] != 1:
                await self._call(f"STREAM.CREATE.KV_{BUCKET}", {**config, "num_replicas": 1})
                return
            if refused.status == NOT_NOW:
                raise
            with contextlib.suppress(Refused):  # it is there, made otherwise
                await self._call(f"STREAM.INFO.KV_{BUCKET}", {})
                return
            await self._call(f"STREAM.CREATE.KV_{BUCKET}", {**config, "storage": "file"})

    async def _call(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        return await call(self._connection, verb, body, timeout=_ASK)


def _token(holder: str) -> str:
    """A holder's name as a subject token."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in holder)


def _key(claim: Claim) -> str:
    return f"{claim.holder}/{claim.client_id}"
