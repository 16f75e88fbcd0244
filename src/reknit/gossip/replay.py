"""What was opened before is not opened again: a window over the counters of each sender's process."""

from __future__ import annotations

from typing import Final

WIDTH: Final = 1024
"""Datagrams that may overtake one another."""
SENDERS: Final = 16384
"""Processes remembered; the one that was silent longest is forgotten first."""


class Replay:
    """Windows of all senders."""

    def __init__(self) -> None:
        self._windows: dict[bytes, tuple[int, int]] = {}  # sender -> (highest counter, bits of those below it)

    def fresh(self, sender: bytes, counter: int) -> bool:
        """Return True if this datagram was not opened before, and remember it; False too if it is too old to tell."""
        highest, bits = self._windows.pop(sender, (-1, 0))
        ahead = counter - highest
        if ahead > 0:
            bits = ((bits << ahead) | 1) & ((1 << WIDTH) - 1) if ahead < WIDTH else 1
            self._windows[sender] = counter, bits
        else:
            bit = 1 << -ahead
            self._windows[sender] = highest, bits | bit if -ahead < WIDTH else bits
            if -ahead >= WIDTH or bits & bit:
                return False
        if len(self._windows) > SENDERS:
            del self._windows[next(iter(self._windows))]
        return True
