"""Member side of a feed: every committed result, sent to workers that are no members yet.

    candidate -> {after, chain}                 go on after this result; `after` null: from now on
    feeder    -> {from, chain}                  the first step that comes, and the result chain before it
              or {cannot}                       why not
    feeder    -> {result, bytes}, the bytes     `result`: packed `Committed`; step after step without a gap
              or {alive}                        newest step, while nothing is committed
              or {end, generation}              the candidate is a member of that world; `end` was the last result
              or {cut}                          why nothing more comes

A feed never holds the ring: the engine only puts results into its backlog (microseconds), a thread of the feed sends
them, and a candidate that is too far behind is cut off. Result buffers are not copied, but held until they are sent.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time
from typing import Any

from reknit.core.events import WorldChanged

from . import side
from .backlog import Limit, of_a_feed
from .courtesy import stand_back
from .exchange import Exchange
from .ring import resend
from .ring.hello import Hello
from .ring.listener import Listener
from .work import Result

_PARTING = 5.0
"""Seconds that a feed which was cut off has to take the rest of the result it is reading."""
_STOCK_EVERY = 0.02
"""Seconds between two looks at the stock of buffers."""
_MOST_FEEDS = 64
_MOST_KEPT = 64
"""Results that are looked for, at most, to go on without a gap; a worker keeps two."""


class Feeder:
    """All feeds of one member. Made once a session; `committed` and `serving` belong to the engine thread.

    Args:
        shared: results are held there.
        limit: of each feed's backlog; by default from the memory that is free when the feed begins.
    """

    def __init__(self, shared: Exchange, *, limit: Limit | None = None) -> None:
        self._shared = shared
        self._limit = limit
        self._feeds: list[_Feed] = []
        self._world: WorldChanged | None = None
        self._closed = False
        self._stocking: threading.Thread | None = None

    def arrived(self, listener: Listener) -> None:
        """Begin a feed for every feed connection that waits at the listener (any thread)."""
        while (taken := listener.take_any("feed")) is not None:
            claim, sock = taken
            feed = _Feed(self._shared, claim, sock, self._limit or of_a_feed())
            with self._shared.cv:
                if self._closed or len(self._feeds) >= _MOST_FEEDS:
                    sock.close()
                    continue
                self._feeds.append(feed)
                if self._stocking is None:
                    self._stocking = threading.Thread(target=self._stock, name="feed-memory", daemon=True)
                    self._stocking.start()
                # the world that is served may have this worker in it already
                feed.start(self._world, self._over)

    def committed(self, result: Result) -> None:
        """A result was completed (after `Exchange.complete`): every feed gets it. Takes microseconds."""
        if not self._feeds:
            return
        with self._shared.cv:
            for feed in self._feeds:
                feed.offer(result)

    def serving(self, world: WorldChanged) -> None:
        """The engine begins to serve a world: feeds of its members end after the results they have been offered."""
        with self._shared.cv:
            self._world = world
            for feed in self._feeds:
                feed.end_if_member(world)

    def close(self) -> None:
        """End all feeds and their threads. Not to be called with `shared.cv` held."""
        with self._shared.cv:
            self._closed = True
            feeds, stocking = list(self._feeds), self._stocking
            for feed in feeds:
                feed.cut_off("this member leaves", at_once=True)
        for feed in feeds:
            feed.join()
        if stocking is not None:
            stocking.join()

    @property
    def fed(self) -> tuple[str, ...]:
        """Workers that are being fed."""
        with self._shared.cv:
            return tuple(feed.worker for feed in self._feeds)

    def _stock(self) -> None:
        """Keep buffers ready while results are held: the next ones go into memory that nobody has touched otherwise."""
        stand_back()
        while True:
            with self._shared.cv:
                if self._closed or not self._feeds:
                    self._stocking = None
                    return
            try:
                self._shared.pool.stock()
            except MemoryError:
                return  # the main thread will find out too, if it needs one; the backlog is bounded
            time.sleep(_STOCK_EVERY)

    def _over(self, feed: _Feed) -> None:
        with self._shared.cv:
            self._feeds.remove(feed)


class _Feed:
    """One candidate's feed. All fields are guarded by `shared.cv`; its thread waits on a condition of its own."""

    def __init__(self, shared: Exchange, claim: Hello, sock: socket.socket, limit: Limit) -> None:
        self.worker = claim.worker
        self._incarnation = claim.incarnation
        self._shared = shared
        self._sock = sock
        self._limit = limit
        self._queue: collections.deque[Result] = collections.deque()
        self._news = threading.Event()
        self._next = -1
        self._newest: Result | None = None
        self._end: tuple[int, int] | None = None
        self._cut = ""
        self._deadline = float("inf")
        self._world: WorldChanged | None = None
        self._thread: threading.Thread | None = None

    def start(self, world: WorldChanged | None, over: Any) -> None:
        """Start the thread; `over(feed)` is called at its end."""
        self._world = world
        self._thread = threading.Thread(target=self._run, args=(over,), name=f"feed-{self.worker}", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread is not None:
            self._thread.join()

    # ------------------------------------------------------------------------------- with shared.cv, never blocking

    def offer(self, result: Result) -> None:
        """The next result."""
        step = result.of.step
        if self._cut or self._end is not None or self._next < 0 or result is self._newest:
            return
        if step != self._next:
            self.cut_off(f"results do not follow each other: {step} after {self._next - 1}")
        elif self._hold(result) and self._limit.exceeded(len(self._queue), result.buffer.nbytes):
            waiting = len(self._queue) * result.buffer.nbytes
            self.cut_off(f"too far behind: {len(self._queue)} results wait ({waiting / 1e6:.1f} MB)")

    def end_if_member(self, world: WorldChanged) -> None:
        """End the feed in good order if its worker is a member of the world."""
        self._world = world
        # a later incarnation of the same process may have been announced while the feed went on
        here = any(m.worker == self.worker and m.incarnation >= self._incarnation for m in world.members)
        if here and not self._cut and self._end is None and self._next >= 0:
            self._end = (self._next - 1, world.generation)
            self._news.set()

    def cut_off(self, reason: str, *, at_once: bool = False) -> None:
        """Send nothing more; results that wait are let go."""
        if not self._cut:
            self._cut = reason
            self._deadline = time.monotonic() + _PARTING
            while self._queue:
                self._let_go(self._queue.pop())
            self._news.set()
        if at_once:
            side.shutdown(self._sock)

    def _hold(self, result: Result) -> bool:
        if self._shared.results.get(result.of.step) is not result:
            self.cut_off(f"result {result.of.step} is gone already")
            return False
        result.holds += 1
        self._queue.append(result)
        self._newest = result
        self._next = result.of.step + 1
        self._news.set()
        return True

    def _let_go(self, result: Result) -> None:
        result.holds -= 1
        self._shared.pool.sent(result)

    # ----------------------------------------------------------------------------------------------- its own thread

    def _run(self, over: Any) -> None:
        stand_back()
        try:
            with self._sock, contextlib.suppress(OSError, side.Broken, KeyError, TypeError, ValueError):
                self._sock.settimeout(side.SILENCE)
                ask = side.receive(self._sock, 4096)
                side.send(self._sock, self._begin(ask["after"]))
                while self._send_next():
                    pass
        finally:
            with self._shared.cv:
                self.cut_off("over")
                over(self)

    def _begin(self, after: int | None) -> dict[str, Any]:
        """Find where the feed begins, and hold what is there of it."""
        shared = self._shared
        with shared.cv:
            if shared.closed or shared.learning or not shared.whole or self._cut:
                raise side.Broken("no state here")
            newest = shared.step - 1
            self._next, chain = newest + 1, shared.chain
            lacking = 0 if after is None else newest - int(after)
            kept = [shared.results.get(newest + 1 - n) for n in range(lacking, 0, -1)] if lacking < _MOST_KEPT else []
            held = [result for result in kept if result is not None]
            if held and len(held) == len(kept):
                self._next, chain = held[0].of.step, held[0].of.settled.chain
            answer = {"from": self._next, "chain": chain}
            for result in held if len(held) == len(kept) else ():
                self._hold(result)
            if self._world is not None:
                self.end_if_member(self._world)
            return answer

    def _send_next(self) -> bool:
        """Send what comes next, or a sign of life; False at the end."""
        sock, shared = self._sock, self._shared
        news = self._news.wait(side.ALIVE)
        with shared.cv:
            result = self._queue.popleft() if self._queue else None
            cut, end, newest = self._cut, self._end, self._next - 1
            if result is None:
                self._news.clear()
        if result is not None:
            try:
                side.send(sock, {"result": resend.pack(result.of), "bytes": result.buffer.nbytes})
                side.send_bytes(sock, result.buffer.data, lambda: time.monotonic() > self._deadline)
            finally:
                with shared.cv:
                    self._let_go(result)
            return True
        if cut:
            side.send(sock, {"cut": cut})
            return False
        if end is not None:
            side.send(sock, {"end": end[0], "generation": end[1]})
            return False
        if not news:
            if side.pending(sock):  # it has nothing more to say: it has closed
                return False
            side.send(sock, {"alive": newest})
        return True
