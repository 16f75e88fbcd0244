"""Whether a node is given more workers than it has room for: said before they start, never refused. Pure."""

from __future__ import annotations

PER_CORE = 4
"""Workers a core that are still worth trying: a test on a small machine wants a few more than it has cores."""
OWN_MEMORY = 40 * 2**20
"""Bytes that a worker takes for itself before any model (32 MiB measured with torch 2.13; torch itself is shared)."""


def crowded(workers: int, cores: int, available: int) -> str:
    """Say that so many workers are too many for this machine; empty if they are not.

    Args:
        workers: that this node starts.
        cores: that they may use.
        available: bytes of memory that are free for them, 0: not known.
    """
    need = workers * OWN_MEMORY
    many, big = workers > PER_CORE * cores, 0 < available < need
    if not (many or big):
        return ""
    room = f", {_size(available)} are free" if available else ""
    return (
        f"{workers} workers on {cores} core{'' if cores == 1 else 's'}: "
        f"they take about {_size(need)} before any model{room}"
        + ("; they share the cores, so more of them do not train faster" if many else "")
        + " (--nproc-per-node auto: one a core)"
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
