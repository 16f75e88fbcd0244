"""Phi accrual: how surprising is this silence?

phi = -log10(P(a heartbeat still comes)), for intervals that are normally distributed with the mean and deviation of
the last ones (Hayashibara et al. 2004, with Akka's acceptable pause). phi 3: once in a thousand (slow); phi 8: once in
a hundred million (evidence). All times are the listener's own monotonic receive times, never another host's clock, so
a skewed or stepped clock elsewhere means nothing.

A `Window` is one sender's recent intervals; it is immutable: `window = window.heard(now)`; `window.phi(now)`.
"""

from __future__ import annotations

import dataclasses
import math

LATE = 2.0
"""Once in a hundred by chance: enough where the node's neighbours say independently that it does not answer."""
SLOW = 3.0
EVIDENCE = 8.0
SIZE = 32
"""Intervals remembered, 8 s at 4 Hz."""
ENOUGH = 4
"""Intervals until its own say more than what was expected of it."""
INTERVAL = 0.25
"""Between two heartbeats as they are sent, seconds."""
PAUSE = 0.25
"""One lost heartbeat is no news, seconds."""
LEAST_DEVIATION = 0.15
"""Seconds; a busy two-core machine delays a thread by as much in good health."""
MOST = 300.0
"""The normal tail is 0 in floating point beyond about this."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Receive times of one sender.

    Attributes:
        last: since when it is silent, seconds, own monotonic clock: its last heartbeat, or a later anchoring.
        intervals: the newest `SIZE` intervals, seconds.
        expected: mean interval assumed until there are some of its own.
        spoke: when it was really heard last; minus infinity if never.
    """

    last: float
    intervals: tuple[float, ...] = ()
    expected: float = INTERVAL
    spoke: float = -math.inf

    def heard(self, now: float) -> Window:
        """Return the window with one more heartbeat; one long gap must not make it deaf for the next one."""
        interval = min(max(0.0, now - self.last), 4 * self.expected)
        intervals = (*self.intervals, interval)[-SIZE:]
        return Window(now, intervals, self.expected if len(intervals) < ENOUGH else INTERVAL, now)

    def anchored(self, now: float) -> Window:
        """Return the window as if heard now, without learning the gap (the listener was away, not the sender)."""
        return dataclasses.replace(self, last=now)

    def silence(self, now: float) -> float:
        """Seconds since it was heard last."""
        return max(0.0, now - self.last)

    def phi(self, now: float) -> float:
        """How surprising the present silence is: 0 (not at all) to `MOST`."""
        if self.silence(now) <= PAUSE + self.expected:
            return 0.0  # no surprise whatever the window says; keeps a thousand streams cheap
        if len(self.intervals) >= ENOUGH:
            count = len(self.intervals)
            mean = sum(self.intervals) / count
            variance = sum((x - mean) ** 2 for x in self.intervals) / count
        else:
            mean, variance = self.expected, (self.expected / 2) ** 2
        deviation = max(math.sqrt(variance), LEAST_DEVIATION)
        z = (self.silence(now) - mean - PAUSE) / deviation
        tail = 0.5 * math.erfc(z / math.sqrt(2.0))
        return min(MOST, -math.log10(tail)) if tail > 0.0 else MOST
