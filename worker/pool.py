"""Flat buffers that are used again: what a slot, a step's result or a received result lies in.

    buffer = pool.take() … pool.give(buffer)
    pool.drop(result)     nothing needs the result any more: its buffer is free at once, or once no feed reads it
    pool.sent(result)     a feed has sent it

Guarded by the exchange's condition.
"""

from __future__ import annotations

import threading

import torch

from .ring.pieces import Buffer, Shape
from .work import Result

_FEW = 2
"""Buffers that are enough: the rest is given back to the system."""


class Pool:
    """The free buffers of one session.

    Args:
        shape: of the buffers.
        cv: guards everything here.
    """

    def __init__(self, shape: Shape, cv: threading.Condition) -> None:
        self._shape = shape
        self._cv = cv
        self._free: list[Buffer] = []

    def take(self) -> Buffer:
        """A flat buffer, content undefined."""
        with self._cv:
            return self._free.pop() if self._free else self._shape.empty()

    def give(self, *buffers: Buffer) -> None:
        """Give buffers back."""
        with self._cv:
            self._free += buffers

    def stock(self) -> None:
        """Get buffers ready for results that will be held, touched already: on any thread, the main one has no time."""
        for _ in range(_FEW):
            with self._cv:
                if len(self._free) >= _FEW:
                    return
            buffer = self._shape.empty()
            torch.from_numpy(buffer).zero_()  # without the GIL
            self.give(buffer)

    def drop(self, result: Result) -> None:
        """Nothing here needs the result any more: its buffer is used again, unless it is still being sent."""
        with self._cv:
            if result.sending:
                result.forgotten = True
            else:
                self._free.append(result.buffer)

    def sent(self, result: Result) -> None:
        """A feed has sent this result: its buffer is used again, unless there are enough, if nothing needs it."""
        with self._cv:
            if result.forgotten and not result.sending:
                result.forgotten = False
                if len(self._free) < _FEW:
                    self._free.append(result.buffer)
