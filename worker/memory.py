"""How much memory this process can still take."""

from __future__ import annotations

from pathlib import Path

import psutil


def free_memory() -> int:
    """Return the bytes that this process can still take: the machine's, or its control group's if that is less."""
    free = int(psutil.virtual_memory().available)
    for path in _control_groups():
        try:
            limit = (path / "memory.max").read_text().strip()
            if limit != "max":
                free = min(free, max(0, int(limit) - int((path / "memory.current").read_text())))
        except (OSError, ValueError):
            continue  # no such controller here
    return free


def _control_groups() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    root = Path("/sys/fs/cgroup")
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    path = root / own.strip("/")
    return [path, *(p for p in path.parents if p == root or root in p.parents)]
