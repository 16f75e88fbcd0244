"""Where a figure was measured, and how busy the machine was meanwhile."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import psutil
from offspring import Offspring

QUIET = 0.1
"""Share of the machine that others may use while it counts as quiet."""


def describe() -> dict[str, Any]:
    """Return processor, memory, versions and the present load."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_1m": load(),
    }


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


@dataclass(frozen=True, slots=True)
class Busy:
    """Processor seconds used so far: by all, and by each of a benchmark's own processes."""

    at: float
    everybody: float
    ours: dict[int, float]

    @classmethod
    def now(cls, offspring: Offspring | None = None) -> Busy:
        """Read the counters."""
        times = psutil.cpu_times()
        ours: dict[int, float] = {}
        for pid in offspring.alive() if offspring is not None else []:
            try:
                used = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            ours[pid] = used.user + used.system
        return cls(time.monotonic(), sum(times) - times.idle - times.iowait - times.guest - times.guest_nice, ours)

    def others_since(self, before: Busy) -> float:
        """Return the share of the machine, 0 to 1, that others used since then.

        What a process of ours used that has ended meanwhile is not known any more and counts as theirs.
        """
        seconds = max(self.at - before.at, 1e-9) * (os.cpu_count() or 1)
        ours = sum(used - before.ours.get(pid, 0.0) for pid, used in self.ours.items())
        return max(0.0, (self.everybody - before.everybody - ours) / seconds)


def wait_until_quiet(at_most: float) -> None:
    """Wait until others leave the machine alone for a moment, but no longer than so many seconds."""
    deadline = time.monotonic() + at_most
    while time.monotonic() < deadline:
        before = Busy.now()
        time.sleep(0.5)
        if Busy.now().others_since(before) < QUIET:
            return
