"""A gloo group for one generation of the ring: made while the links are watched, ended at once, gone without trace."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ReduceOp

from reknit.worker.ring.link import Link

from .group import CollectiveFailed
from .making import Making, first_line
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

_Process: Any = getattr(dist, "ProcessGroupGloo", None)  # its stub lacks half of what it has


class _Work:
    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self.future = work.get_future()
        self.tensor = tensor  # gloo writes to it: it lives as long as this
        self._work = work

    @property
    def done(self) -> bool:
        return bool(self.future.done())

    def check(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise CollectiveFailed(first_line(error)) from error


def making(rank: int, size: int, host: str, wake: Callable[[], None]) -> Making:
    """What makes the group; gloo listens at `host`."""

    def make(store: Meeting) -> Any:
        options = _Process._Options()  # noqa: SLF001 - torch itself makes groups with it
        options._devices = [_Process.create_device(hostname=host, lazy_init=False)]  # noqa: SLF001
        options._timeout = timedelta(seconds=CONNECTING)  # noqa: SLF001
        options._threads = _THREADS  # noqa: SLF001
        return _Process(store, rank, size, options)

    return Making(make, "gloo-make", wake)


class GlooGroup:
    """See `group.Group`. Made by `meet`.

    Args:
        making: has made the group, or is still at it: then it is only good for `close`.
        rank: this member.
    """

    pace = 0.05  # every work rings the bell

    def __init__(self, making: Making, rank: int) -> None:
        self._making = making
        self._rank = rank
        self._under_way: list[_Work] = []
        self._closing: threading.Thread | None = None

    @classmethod
    def meet(cls, rank: int, size: int, host: str, *, previous: Link, following: Link, watch: Watch) -> GlooGroup:
        """Make the group with all members of the ring.

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
            Unusable: gloo does not start here.
        """
        group = cls(making(rank, size, host, watch.ring), rank)
        try:
            group._making.together(rank, size, previous=previous, following=following, watch=watch)
        except BaseException:
            group.close()
            raise
        return group

    def start(self, tensor: torch.Tensor, wake: Callable[[], None]) -> _Work:
        """See `group.Group`."""
        if self._closing is not None:
            raise CollectiveFailed("the group is closed")
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.SUM)
        options.timeout = timedelta(seconds=PATIENCE)
        try:
            work = _Work(self._making.made.allreduce([tensor], options), tensor)
        except RuntimeError as error:
            raise CollectiveFailed(first_line(error)) from error
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
        """See `group.Group`."""
        self.close()
        assert self._closing is not None
        self._closing.join(seconds)
        return not self._closing.is_alive()

    def _end(self) -> None:
        making = self._making
        making.meeting.answer(None)
        mine = b"".join((making.meeting.offer or {}).values())
        others = [address for rank, address in enumerate(making.addresses) if rank != self._rank and address]
        while True:
            if mine:
                shut_down(mine, others)  # again and again: while the group is made, connections are still to come
            making.join(_AGAIN)
            if not making.is_alive() and all(work.done for work in self._under_way):
                break
            time.sleep(_AGAIN / 10)
        self._under_way.clear()
        made, making.made = making.made, None
        if made is not None:
            with contextlib.suppress(RuntimeError):
                made.shutdown()
        # the last reference: gloo ends its threads and closes its descriptors here
        del made
