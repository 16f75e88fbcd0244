"""What a standby would have done: kept for a moment, and done when it takes over.

    undone.keep(key, call)     we do not act now
    undone.release()           we do: everything that is not too old, in order

The one that acted may have died between a decision and its publication. What it did do is not done twice: that is the
broker's business (compare-and-set, ids), not this memory's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

KEEP = 5.0
"""Seconds; whoever acted has done or lost it by then, and what is still due is decided again."""
MOST = 1000


class Undone:
    """Calls by key, oldest first; a call under a known key replaces the one before."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, tuple[float, Callable[[], object]]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def keep(self, key: Hashable, call: Callable[[], object]) -> None:
        """Remember a call."""
        self._calls.pop(key, None)
        self._calls[key] = (time.monotonic(), call)
        if len(self._calls) > MOST:
            self._calls.pop(next(iter(self._calls)))

    def release(self) -> None:
        """Do what was kept and is not too old."""
        calls, self._calls = self._calls, {}
        oldest = time.monotonic() - KEEP
        for at, call in calls.values():
            if at >= oldest:
                call()
