"""One worker of the all-reduce benchmark, of either system: does what it is told over a socket, and nothing else.

The ring is the workers' own: `Reduction` over two `Link`s that introduced themselves as always. Its opponent adds its
two slots and lets gloo all-reduce the sum. Both keep the sum apart from the slots, and both are checked.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from multiprocessing.connection import Client, Connection
from typing import Protocol

import numpy as np

from reknit.core.events import Range
from reknit.worker.ring import reduction
from reknit.worker.ring.control import Settled, Wishes
from reknit.worker.ring.hello import Hello
from reknit.worker.ring.link import Link
from reknit.worker.ring.linking import link_next, take_previous
from reknit.worker.ring.listener import Listener
from reknit.worker.ring.pieces import Buffer, Section, Shape

SLOTS_EACH = 2
TILE = 997
"""Floats after which a slot repeats itself, so that the sum of all can be checked at once."""
BLOCK = 1000
"""Tiles that are checked at a time."""


class Peer(Protocol):
    """One worker of a system."""

    def reduce(self, floats: int, times: int) -> float:
        """Reduce so many floats so many times; returns the seconds that it took."""

    def check(self) -> None:
        """Check the last result.

        Raises:
            AssertionError: it is wrong.
        """


def tile(slot: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return what a slot consists of: values whose sum depends on the order."""
    draw = np.random.default_rng(slot)
    return (draw.standard_normal(TILE) * 10.0 ** draw.integers(-6, 6, TILE)).astype(np.float32)


def filled(slot: int, floats: int) -> Buffer:
    """Return a slot's buffer."""
    return np.resize(tile(slot), floats).view(np.uint8)


class RingPeer:
    """See the module; the ring of worker `rank` among `size`."""

    def __init__(self, rank: int, size: int, control: Connection) -> None:
        arrived = threading.Event()
        listener = Listener("bench", f"w{rank}", "secret", "127.0.0.1", arrived.set)
        control.send(listener.address)
        addresses = control.recv()
        following = (rank + 1) % size
        greeting = Hello("bench", "ring", 1, f"w{rank}", 1, f"w{following}")
        self._following = link_next(addresses[following], greeting, "secret", _fail, lambda: False)
        self._previous: Link = take_previous(
            listener,
            1,
            f"w{(rank - 1) % size}",
            on_error=_fail,
            wait=lambda *_: bool(arrived.wait(0.01)),
            moved=lambda: False,
        )
        listener.close()
        self._owners = tuple(Range(worker=f"w{i}", first=SLOTS_EACH * i, end=SLOTS_EACH * (i + 1)) for i in range(size))
        self._slots = SLOTS_EACH * size
        self._where = reduction.route([f"w{i}" for i in range(size)], self._owners, f"w{rank}")
        self._mine = range(SLOTS_EACH * rank, SLOTS_EACH * (rank + 1))
        self._step = self._chain = 0
        self._floats = 0
        self._own: list[Buffer] = []
        self._results: list[Buffer] = []

    def reduce(self, floats: int, times: int) -> float:
        """See `Peer`."""
        shape = Shape((Section("f4", 0, 4 * floats),))
        if floats != self._floats:
            self._floats = floats
            self._own = [filled(slot, floats) for slot in self._mine]
            self._results = [np.zeros(4 * floats, np.uint8) for _ in range(2)]
        cut = shape.pieces()
        free = [0, 0]
        began = time.perf_counter()
        for number in range(times):
            turn = number % 2
            while self._following.done < free[turn]:
                self._following.drain(60.0)
            result = self._results[turn]
            self._reduce(cut, result)
            free[turn] = self._following.issued
        seconds = time.perf_counter() - began
        self._last = result
        return seconds

    def check(self) -> None:
        """See `Peer`."""
        while self._following.done < self._following.issued:
            self._following.drain(60.0)
        _check(self._last, self._slots, tolerance=0.0)

    def _reduce(self, cut: tuple[reduction.Piece, ...], result: Buffer) -> None:
        work = reduction.Reduction(
            step=self._step,
            slots=self._slots,
            cut=cut,
            where=self._where,
            previous=self._previous,
            following=self._following,
            result=result,
            chain=self._chain,
            own=lambda: self._own,
            wishes=lambda: Wishes(chain=self._chain),
            settle=lambda wishes: Settled(self._owners, chain=wishes.chain),
        )
        _, self._chain = work.run()
        self._step += 1


class GlooPeer:
    """See the module; a static group over a file."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        self._torch, self._dist = torch, dist
        self._mine = range(SLOTS_EACH * rank, SLOTS_EACH * (rank + 1))
        self._slots = SLOTS_EACH * size
        self._floats = 0

    def reduce(self, floats: int, times: int) -> float:
        """See `Peer`."""
        torch, dist = self._torch, self._dist
        if floats != self._floats:
            self._floats = floats
            self._own = [torch.from_numpy(filled(slot, floats).view(np.float32)) for slot in self._mine]
            self._total = torch.zeros(floats)
        first, second = self._own
        began = time.perf_counter()
        for _ in range(times):
            torch.add(first, second, out=self._total)
            dist.all_reduce(self._total)
        return time.perf_counter() - began

    def check(self) -> None:
        """See `Peer`."""
        _check(self._total.numpy().view(np.uint8), self._slots, tolerance=1e-5)


def _check(result: Buffer, slots: int, *, tolerance: float) -> None:
    """Compare with the fold of all slots; `tolerance` is relative to the sum of magnitudes, 0 means bit for bit."""
    total = tile(0)
    scale = abs(total)
    for slot in range(1, slots):
        total += tile(slot)
        scale += abs(tile(slot))
    got = result.view(np.float32)
    for start in range(0, len(got), BLOCK * TILE):
        block = got[start : start + BLOCK * TILE]
        want = np.resize(total, len(block))
        if tolerance:
            right = bool(np.all(abs(block - want) <= tolerance * np.resize(scale, len(block))))
        else:
            right = np.array_equal(block.view(np.int32), want.view(np.int32))
        if not right:
            raise AssertionError("the sum is wrong")


def _fail() -> None:
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=("ring", "gloo"))
    parser.add_argument("folder")
    parser.add_argument("rank", type=int)
    parser.add_argument("size", type=int)
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with Client(f"{args.folder}/{args.system}{args.rank}") as control:
        peer: Peer = (
            RingPeer(args.rank, args.size, control)
            if args.system == "ring"
            else GlooPeer(args.rank, args.size, f"{args.folder}/store")
        )
        control.send("ready")
        while (order := control.recv()) is not None:
            control.send(peer.reduce(*order) if order else peer.check())


if __name__ == "__main__":
    sys.exit(main())
