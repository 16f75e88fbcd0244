"""What a process keeps after each change of the world: descriptors, threads, memory. Slopes tell a leak."""

from __future__ import annotations

from dataclasses import dataclass, field

import psutil
from figures import slope

LIMITS = {
    "fds_per_change": (0.02, 3.0),
    "threads_per_change": (0.02, 3.0),
    "rss_kib_per_change": (64.0, 4096.0),
}
"""What counts as a leak: growth a change, and what it must come to over the run, lest a short run show its noise."""


@dataclass
class Residue:
    """What one process held after each change."""

    changes: list[float] = field(default_factory=list)
    fds: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)
    rss_kib: list[float] = field(default_factory=list)

    def take(self, change: int, process: psutil.Process) -> None:
        """Read the process now; one that is gone is left out."""
        try:
            fds, threads, rss = process.num_fds(), process.num_threads(), process.memory_info().rss
        except psutil.NoSuchProcess:
            return
        self.changes.append(change)
        self.fds.append(fds)
        self.threads.append(threads)
        self.rss_kib.append(rss / 1024)

    def growth(self) -> dict[str, float]:
        """Return the slopes a change (least squares, the first tenth left out as warm-up), and the last values."""
        warm = len(self.changes) // 10
        x = self.changes[warm:]
        return {
            "fds_per_change": round(slope(x, self.fds[warm:]), 4),
            "threads_per_change": round(slope(x, self.threads[warm:]), 4),
            "rss_kib_per_change": round(slope(x, self.rss_kib[warm:]), 2),
            "fds": self.fds[-1],
            "threads": self.threads[-1],
            "rss_mib": round(self.rss_kib[-1] / 1024, 1),
        }


def leaks(growth: dict[str, float], changes: int) -> list[str]:
    """Say what a process gains with each change."""
    return [
        f"{name} {growth[name]}, limit {limit}"
        for name, (limit, in_all) in LIMITS.items()
        if growth[name] > limit and growth[name] * changes > in_all
    ]
