"""Following the log: what is stored already, then what comes, in order, each event once, over any reconnect.

How it works: live messages come in on `live.…` while the journal is read; what the reading has covered is dropped from
them, the rest goes on. Nothing is given from the moment the connection is lost until the journal was read again: else
the first message of the new connection would pass for the newest that we have, and hide what was missed before it. Each
live message also names the sequence before it on its own subject: if that is one we have neither heard nor read,
something was dropped, and the journal is read again. So a full buffer, a broken connection and a restarted broker are
all one case.

Where a reading begins: at the newest event given, if there is one broker, which sends in order and drops nothing
while a connection stands. Where that does not hold (a gap was seen; brokers of a cluster, whose leader may end between
storing an event and sending it on) it begins where the last reading ended, and what was given since is known by
subject. In a cluster there is a reading every minute, as nothing else tells of a last event that was lost.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from nats.aio.msg import Msg

from reknit.core import log
from reknit.core.connection import Connection, NotAnswered
from reknit.core.errors import ReknitError, Unauthorized
from reknit.core.journal import Journal
from reknit.core.listener import Listener
from reknit.core.stored import Stored, live
from reknit.core.subjects import LIVE, ROOT

_BUFFER = 20_000
"""Live messages kept while the journal is read; if there are more, they are read from the journal as well."""
_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_LOOK_EVERY = 60.0
"""Seconds between two readings in a cluster."""
_SAY_EVERY = 10.0
"""Seconds between two remarks on messages that somebody publishes as if they came from the log."""

_log = log.get("follow")


def subjects(job: str, areas: Sequence[str] | None) -> list[str]:
    """Return the subjects of stored events that (job or `*`, areas or None for all) stands for."""
    if areas is None:
        return [f"{ROOT}.{job}.>"]
    return [f"{ROOT}.{job}.{area}.>" for area in areas]


class Follow:
    """One follower of the log; made by `Bus.follow`.

    Attributes:
        last: sequence of the newest event given to the callback (or skipped as not readable).
        readings: how often the journal was read.
    """

    def __init__(
        self, connection: Connection, journal: Journal, filters: Sequence[str], sink: Callable[[Stored], None]
    ) -> None:
        self.last = 0
        self.readings = 0
        self._connection = connection
        self._journal = journal
        self._filters = list(filters)
        self._sink = sink
        self._listeners: list[Listener] = []
        self._covered = 0  # all of ours up to here was given, by readings
        self._complete = 0  # the same, as far as the order of one connection can be trusted
        self._heard: dict[str, int] = {}  # subject -> its newest sequence given, of those above _covered
        self._waiting: list[tuple[int, int, Stored]] = []  # heap by sequence
        self._reading = True
        self._reached = 0  # how far the reading that runs has come
        self._restarts = 0
        self._drain_is_due = False
        self._read_again = asyncio.Event()
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._foreign = 0
        self._foreign_said = 0.0

    async def start(self, from_seq: int) -> None:
        """Listen, read what is stored from `from_seq` on, and return when that is given to the callback.

        Raises:
            Unauthorized: the broker forbids listening or reading.
        """
        self.last = self._covered = self._complete = max(from_seq - 1, 0)
        self._read_again.set()
        self._connection.on_lost.append(self.read_again)
        self._connection.on_back.append(self.read_again)
        try:
            for subject in self._filters:
                listener = await self._connection.listen(f"{LIVE}.{subject}", self._on_live)
                listener.on_drop = self.read_again
                self._listeners.append(listener)
            self._task = asyncio.create_task(self._run(), name="follow")
            await self._first
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop; the callback is not called again."""
        self._stopped = True
        for calls in (self._connection.on_lost, self._connection.on_back):
            if self.read_again in calls:
                calls.remove(self.read_again)
        if self._task is not None:
            self._task.cancel()
        if not self._first.done():
            self._first.cancel()
        for listener in self._listeners:
            await listener.stop()
        self._listeners.clear()
        self._waiting.clear()

    def read_again(self) -> None:
        """Give nothing more until the journal was read once more: something may have been missed."""
        self._reading = True
        self._read_again.set()

    def restart(self) -> None:
        """Begin at the first event again: the journal was replaced by another one."""
        self._restarts += 1
        self.last = self._covered = self._complete = 0
        self._heard.clear()
        self._waiting.clear()
        self.read_again()

    # ----------------------------------------------------------------------------------------------------- live

    def _on_live(self, message: Msg) -> None:
        stored = live(message)
        if stored is None:
            self._say_foreign(message.subject)
        elif not self._stopped:
            if len(self._waiting) >= _BUFFER:
                self._waiting.clear()
                self.read_again()
                return
            heapq.heappush(self._waiting, (stored.seq, id(stored), stored))
            # With several filters each has a queue of its own in the client library. All that came in one packet is
            # handed over before what is scheduled now runs, so the heap sees it whole and puts it in order.
            if not self._reading and not self._drain_is_due:
                self._drain_is_due = True
                asyncio.get_running_loop().call_soon(self._drain)

    def _say_foreign(self, subject: str) -> None:
        self._foreign += 1
        now = time.monotonic()
        if self._foreign == 1 or now - self._foreign_said >= _SAY_EVERY:
            self._foreign_said = now
            _log.warning("not from the log", subject=subject, so_far=self._foreign)

    def _drain(self) -> None:
        self._drain_is_due = False
        while self._waiting and not self._reading and not self._stopped:
            stored = self._waiting[0][2]
            if stored.seq <= self._heard.get(stored.subject, self._covered):
                heapq.heappop(self._waiting)
            elif stored.previous > self._covered and stored.previous != self._heard.get(stored.subject, 0):
                _log.info("gap in the log", subject=stored.subject, seq=stored.seq, missing=stored.previous)
                self._complete = self._covered
                self.read_again()
            elif stored.seq < self.last:
                _log.warning("out of order", subject=stored.subject, seq=stored.seq, after=self.last)
                self._give(heapq.heappop(self._waiting)[2])
            else:
                self._give(heapq.heappop(self._waiting)[2])
        # Nothing that came on this connection waits somewhere: so nothing from before `last` is missing.
        if not (self._reading or self._connection.clustered or any(one.pending for one in self._listeners)):
            self._complete = self.last

    def _give(self, stored: Stored) -> None:
        self._heard[stored.subject] = stored.seq
        self.last = max(self.last, stored.seq)
        self._sink(stored)

    # -------------------------------------------------------------------------------------------------- reading

    async def _run(self) -> None:
        pause, said = _PAUSE, ""
        while True:
            await self._due()
            try:
                await self._connection.wait_connected(float("inf"))
                await self._read()
                if not self._read_again.is_set():
                    pause, said = _PAUSE, ""
                    continue
                _log.debug("not all is there yet", last=self.last)  # read from a replica that lags behind
            except Unauthorized as error:
                if not self._first.done():
                    self._first.set_exception(error)
                    return
                if said != str(error):
                    said = str(error)
                    _log.error("the log cannot be read any more", reason=said)
            except NotAnswered as error:
                _log.debug("reading again", reason=str(error))
            except ReknitError as error:
                if said != str(error):
                    said = str(error)
                    _log.warning("the log cannot be read, trying again", reason=said)
            except Exception as error:  # noqa: BLE001 - whatever it is, a follower must not fall silent
                _log.error("reading the log failed, trying again", exc_info=error)
            self.read_again()
            await asyncio.sleep(random.uniform(0.5, 1.5) * pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _due(self) -> None:
        while not self._read_again.is_set():
            try:
                async with asyncio.timeout(random.uniform(0.75, 1.25) * _LOOK_EVERY):
                    await self._read_again.wait()
            except TimeoutError:
                if self._connection.clustered:
                    self.read_again()

    async def _read(self) -> None:
        while self._read_again.is_set():
            self._reading = True
            self._read_again.clear()
            self.readings += 1
            begin = self._reached = self._complete
            restarts = self._restarts
            await self._journal.replay(self._filters, begin + 1, partial(self._on_stored, restarts))
            if restarts != self._restarts:
                continue  # what was read is of the journal before, or of the middle of this one
            self._covered = self._complete = max(self._covered, self._reached)
            self._heard = {subject: seq for subject, seq in self._heard.items() if seq > self._covered}
        self._reading = False
        self._drain()
        if not self._first.done():
            self._first.set_result(None)

    def _on_stored(self, restarts: int, stored: Stored) -> None:
        if restarts != self._restarts:
            return
        self._reached = stored.seq
        if stored.seq > self._heard.get(stored.subject, self._covered) and not self._stopped:
            self._give(stored)
