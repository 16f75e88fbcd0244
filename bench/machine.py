"""Where a figure was measured, and how busy the machine was meanwhile."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import psutil


def describe() -> dict[str, Any]:
    """Return processor, memory, versions and the present load."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_1m": load(),
    }


def load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)
