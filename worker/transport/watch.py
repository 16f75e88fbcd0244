"""Waiting for something that is no link, without losing sight of the links: whoever dies is noticed at once.

A collective of another library says nothing when a neighbour's process is gone or when a newer world has cut the links.
The links do, and both show on their sockets: so the engine thread never blocks in a collective, it waits here.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

from reknit.worker.ring.link import Link, LinkBroken
from reknit.worker.ring.linking import WorldMoved

_SLICE = 0.05
"""Seconds between looks at whether the world has moved on."""


class Watch:
    """Watches both links of a generation, and a bell that any thread may ring.

    Used like this: `watch = Watch(previous, following, moved)`, `watch.until(lambda: work.done)`, `watch.close()`.
    """

    def __init__(self, previous: Link | None, following: Link | None, moved: Callable[[], bool]) -> None:
        self._moved = moved
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._sides: dict[int, str] = {}
        self._closed = False
        self._lock = threading.Lock()  # nobody may write to the bell's number once it is another file's
        for link in (previous, following):
            if link is not None and link.fileno() >= 0:
                # only the end of the stream: frames that a faster neighbour has sent already must not wake us for ever
                self._poll.register(link.fileno(), select.POLLRDHUP)
                self._sides[link.fileno()] = link.side

    def ring(self) -> None:
        """Wake the waiter; any thread, also after `close`."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_write(self._bell, 1)

    def until(self, true: Callable[[], bool], seconds: float | None = None, pace: float = _SLICE) -> bool:
        """Wait until `true()`, looked at whenever the bell rings; False after `seconds`.

        Args:
            true: what is waited for.
            seconds: how long at most.
            pace: seconds between looks when nothing rings the bell.

        Raises:
            LinkBroken: a link has ended, or was aborted.
            WorldMoved: a newer world arrived meanwhile.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while not true():
            if self._moved():
                raise WorldMoved("a newer world arrived during a collective")
            left = pace if deadline is None else min(pace, deadline - time.monotonic())
            if left <= 0:
                return False
            for descriptor, _ in self._poll.poll(max(1, round(left * 1000))):
                if descriptor == self._bell:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._bell)
                else:
                    raise LinkBroken(self._sides[descriptor], "closed by the peer or aborted, during a collective")
        return True

    def close(self) -> None:
        """Free the bell."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._bell)
