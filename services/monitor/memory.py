"""A worker's resident memory over the last minutes, and how fast it grows."""

from __future__ import annotations

import dataclasses

SPACING = 5.0
"""Seconds between two samples."""
MOST = 36
ENOUGH = 60.0
"""Seconds that samples must span before they say anything."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trend:
    """Samples (monotonic seconds, bytes), the newest last."""

    samples: tuple[tuple[float, int], ...] = ()

    def add(self, now: float, rss: int) -> Trend:
        """Take in a measurement; too soon after the one before, or none at all (0 bytes), it changes nothing."""
        if rss <= 0 or (self.samples and now - self.samples[-1][0] < SPACING):
            return self
        return Trend((*self.samples[-MOST + 1 :], (now, rss)))

    @property
    def grown(self) -> int:
        """Bytes between the oldest sample and the newest."""
        return self.samples[-1][1] - self.samples[0][1] if self.samples else 0

    def slope(self) -> float | None:
        """Return bytes a second by least squares, None if the samples do not span enough time."""
        if len(self.samples) < 3 or self.samples[-1][0] - self.samples[0][0] < ENOUGH:
            return None
        n = len(self.samples)
        mean_t = sum(t for t, _ in self.samples) / n
        mean_y = sum(y for _, y in self.samples) / n
        spread = sum((t - mean_t) ** 2 for t, _ in self.samples)
        return sum((t - mean_t) * (y - mean_y) for t, y in self.samples) / spread
