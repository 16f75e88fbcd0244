"""A gloo group for one generation of the ring: made while the links are watched, ended at once, gone without trace."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp

from reknit.worker.ring.link import Link
from reknit.worker.ring.token import circulate

from .group import CollectiveFailed
from .meeting import Meeting
from .sockets import shut_down
from .watch import Watch

CONNECTING = 4.0
"""Timeout of a group that is being made; gloo gives up after five of them (measured). Who watches the links gives up at
once when the world moves: this is only how long what was given up may linger when a peer was stopped just then."""
PATIENCE = 15.0
"""Seconds that a collective may be without progress. All members have begun it (see `largest`), so nobody computes
meanwhile. It is also how long a collective may linger that was given up: shutting its connections down ends it at once,
but gloo now and then forgets to wake one that is about to send (seen in `UnboundBuffer::waitSend`, torch 2.13)."""
_THREADS = 2
_AGAIN = 0.05

_Process: Any = dist.ProcessGroupGloo  # its stub lacks half of what it has


class _Work:
    def __init__(self, work: dist.Work, tensor: torch.Tensor) -> None:
        self.future = work.get_future()
        self.tensor = tensor  # gloo writes to it: it lives as long as this
        self._work = work

    @property
    def done(self) -> bool:
        return self.future.done()

    def check(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise CollectiveFailed(_first_line(error)) from error


class _Maker(threading.Thread):
    """Makes the group on a thread of its own: gloo's constructor blocks until all members are connected."""

    def __init__(self, rank: int, size: int, host: str, wake: Callable[[], None]) -> None:
        super().__init__(name="gloo-make", daemon=True)
        self.meeting = Meeting(rank, size, wake)
        self.made: Any = None
        self.error: Exception | None = None
        self.over = False
        self._rank, self._size, self._host, self._wake = rank, size, host, wake

    def run(self) -> None:
        try:
            options = _Process._Options()  # noqa: SLF001 - torch itself makes groups with it
            options._devices = [_Process.create_device(hostname=self._host, lazy_init=False)]  # noqa: SLF001
            options._timeout = timedelta(seconds=CONNECTING)  # noqa: SLF001
            options._threads = _THREADS  # noqa: SLF001
            self.made = _Process(self.meeting, self._rank, self._size, options)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the thread that waits
            self.error = error
        self.over = True
        self._wake()


class GlooGroup:
    """See `group.Group`. Made by `meet`.

    Args:
        maker: has made the group, or is still at it: then it is only good for `close`.
        addresses: what the members told each other, in order of rank; () if they did not come to that.
        rank: this member.
    """

    def __init__(self, maker: _Maker, addresses: Sequence[bytes], rank: int) -> None:
        self._maker: _Maker | None = maker
        self._addresses = addresses
        self._rank = rank
        self._under_way: list[_Work] = []
        self._closing: threading.Thread | None = None

    @classmethod
    def meet(
        cls,
        rank: int,
        size: int,
        host: str,
        *,
        previous: Link,
        following: Link,
        watch: Watch,
    ) -> GlooGroup:
        """Make the group with all members of the ring; each calls this at the same point of what it sends.

        Args:
            rank: place in the ring.
            size: members.
            host: address of this machine that all members can reach.
            previous: link to the previous member, idle.
            following: link to the next member, idle.
            watch: of these links.

        Raises:
            LinkBroken: a neighbour is gone.
            WorldMoved: a newer world arrived meanwhile.
            CollectiveFailed: the members did not come together.
        """
        maker = _Maker(rank, size, host, watch.ring)
        maker.start()
        group = cls(maker, (), rank)
        try:
            watch.until(lambda: maker.meeting.offer is not None or maker.over)
            # who could not even offer an address says so, or the others would wait for it
            group._addresses = circulate(rank, size, previous, following, maker.meeting.offer or b"")
            if not all(group._addresses):
                raise CollectiveFailed(f"gloo does not start here or at a peer: {_first_line(maker.error)}")
            maker.meeting.answer(group._addresses)
            watch.until(lambda: maker.over)
            if maker.made is None:
                raise CollectiveFailed(f"gloo: {_first_line(maker.error)}")
        except BaseException:
            group.close()
            raise
        return group

    def start(self, tensor: torch.Tensor, wake: Callable[[], None]) -> _Work:
        """See `group.Group`."""
        if self._maker is None or self._maker.made is None:
            raise CollectiveFailed("the group is closed")
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.SUM)
        options.timeout = timedelta(seconds=PATIENCE)
        try:
            work = _Work(self._maker.made.allreduce([tensor], options), tensor)
        except RuntimeError as error:
            raise CollectiveFailed(_first_line(error)) from error
        self._under_way = [w for w in self._under_way if not w.done]
        self._under_way.append(work)
        work.future.add_done_callback(lambda _: wake())
        return work

    def close(self) -> None:
        """See `group.Group`."""
        if self._closing is None:
            self._closing = threading.Thread(target=self._end, name="gloo-close", daemon=True)
            self._closing.start()

    def closed(self, seconds: float) -> bool:
        """Wait until everything is freed; False after so many seconds."""
        self.close()
        assert self._closing is not None
        self._closing.join(seconds)
        return not self._closing.is_alive()

    def _end(self) -> None:
        maker = self._maker
        assert maker is not None
        maker.meeting.answer(None)
        mine = maker.meeting.offer or b""
        others = [a for rank, a in enumerate(self._addresses) if rank != self._rank and a]
        while True:
            if mine:
                shut_down(mine, others)  # again and again: while the group is made, connections are still to come
            maker.join(_AGAIN)
            if not maker.is_alive() and all(work.done for work in self._under_way):
                break
            time.sleep(_AGAIN / 10)
        self._under_way.clear()
        made, maker.made = maker.made, None
        self._maker = None
        if made is not None:
            with contextlib.suppress(RuntimeError):
                made.shutdown()
        # the last reference: gloo ends its threads and closes its descriptors here
        del made


def _first_line(error: Exception | None) -> str:
    return str(error).strip().partition("\n")[0] if error is not None else "a peer could not listen"
