"""An NCCL communicator for one generation of the ring: made while the links are watched, aborted when they break.

torch's own watchdog of NCCL ends the process when a peer dies. It is switched off (see `prepare`): who is dead is for
membership to say, and a survivor aborts the communicator and goes on.
"""

from __future__ import annotations

import contextlib
import os
import threading
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
from .watch import Watch

ABORTING = 30.0
"""Seconds that torch waits for the end of an abort before it says so."""
_SETTINGS = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",  # no watchdog thread: works are looked at by those who wait for them
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}

_Process: Any = getattr(dist, "ProcessGroupNCCL", None)  # absent from a build without NCCL


def prepare() -> None:
    """Let a broken communicator be an error and not the end of the process; before the first group is made.

    Variables that the user has set stay as they are.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


class _Work:
    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._work = work

    @property
    def done(self) -> bool:
        return bool(self._work.is_completed())  # also looks for errors that NCCL has noticed meanwhile

    def check(self) -> None:
        try:
            self._work.wait()  # the present stream goes on after the collective
        except RuntimeError as error:
            raise CollectiveFailed(first_line(error)) from error


def making(rank: int, size: int, device: torch.device, wake: Callable[[], None]) -> Making:
    """What makes the communicator, on one GPU."""

    def make(store: Meeting) -> Any:
        options = _Process.Options()
        options._timeout = timedelta(seconds=ABORTING)  # noqa: SLF001 - as torch.distributed sets it
        group = _Process(store, rank, size, options)
        with torch.cuda.device(device):
            group.eager_connect_single_device(device)
        return group

    return Making(make, "nccl-make", wake)


class NcclGroup:
    """See `group.Group`. Made by `meet`. Nothing rings the bell when a collective ends: who waits looks again.

    Args:
        making: has made the communicator, or is still at it: then it is only good for `close`.
    """

    pace = 0.001

    def __init__(self, making: Making) -> None:
        self._making = making
        self._under_way: list[_Work] = []
        self._closing: threading.Thread | None = None

    @classmethod
    def meet(
        cls, rank: int, size: int, device: torch.device, *, previous: Link, following: Link, watch: Watch
    ) -> NcclGroup:
        """Make the communicator with all members of the ring.

        Args:
            rank: place in the ring.
            size: members.
            device: the GPU whose tensors are added up.
            previous: link to the previous member, idle.
            following: link to the next member, idle.
            watch: of these links.

        Raises:
            LinkBroken: a neighbour is gone.
            WorldMoved: a newer world arrived meanwhile.
            CollectiveFailed: the members did not come together.
            Unusable: NCCL does not start here.
        """
        group = cls(making(rank, size, device, watch.ring))
        try:
            group._making.together(rank, size, previous=previous, following=following, watch=watch)
        except BaseException:
            group.close()
            raise
        return group

    def start(self, tensor: torch.Tensor, wake: Callable[[], None]) -> _Work:  # noqa: ARG002 - the port's signature
        """See `group.Group`."""
        if self._closing is not None:
            raise CollectiveFailed("the communicator is closed")
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.SUM)
        try:
            work = _Work(self._making.made.allreduce([tensor], options), tensor)
        except RuntimeError as error:
            raise CollectiveFailed(first_line(error)) from error
        self._under_way = [w for w in self._under_way if not w.done]
        self._under_way.append(work)
        return work

    def close(self) -> None:
        """See `group.Group`."""
        if self._closing is None:
            self._closing = threading.Thread(target=self._end, name="nccl-close", daemon=True)
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
        # a communicator that is being made cannot be aborted from here (torch has no handle on it yet): NCCL gives up
        # when a peer's connection closes, and who waits for a frozen peer is left behind on this thread
        making.join()
        made, making.made = making.made, None
        if made is not None:
            with contextlib.suppress(RuntimeError):
                made.abort()
        self._under_way.clear()
        del made
