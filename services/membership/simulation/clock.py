"""Virtual time: a heap of calls, each at its moment; calls of one moment run in the order in which they were asked for.

Used like this: `clock.after(0.5, node.beat)`, then `clock.run(until=10.0)`. Nothing is cancelled: a call looks for
itself whether it still means anything (the node may have been restarted since).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Monotonic virtual seconds and what is to happen.

    Attributes:
        now: the present moment.
        calls: how many calls were made.
    """

    __slots__ = ("_heap", "_order", "calls", "now")

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.calls = 0
        self._order = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        """Call later; a moment that is past means now."""
        self._order += 1
        heapq.heappush(self._heap, (max(when, self.now), self._order, call, args))

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """Call after some seconds."""
        self._order += 1
        heapq.heappush(self._heap, (self.now + seconds, self._order, call, args))

    def run(self, until: float) -> None:
        """Let time pass until this moment."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, _, call, args = heapq.heappop(heap)
            self.now = when
            self.calls += 1
            call(*args)
        self.now = max(self.now, until)
