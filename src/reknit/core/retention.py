"""Which checkpoints are kept and which may go. Pure: it sees manifests only, and names only manifests.

A checkpoint goes when nothing keeps it: it is not among the newest n, not at an every-k step, not pinned. The newest
one is kept whatever the numbers say, and a directory without a readable manifest of this very job is never named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reknit.core.manifest import Listed


def expendable(listed: Sequence[Listed], *, keep: int, every: int = 0) -> tuple[tuple[Path, str], ...]:
    """Return (directory, reason) of the checkpoints that may be deleted, oldest first.

    Args:
        listed: the job's checkpoints, newest first, as `list_manifests` gives them.
        keep: how many of the newest stay; less than 1 means 1.
        every: those whose step is a multiple of this stay too; 0: none for that reason.
    """
    keep = max(1, keep)
    own = [item for item in listed if item.manifest is not None and not item.problem and not item.foreign]
    going = []
    for item in own[keep:]:
        step = item.manifest.step if item.manifest else 0
        if item.pinned or (every > 0 and step % every == 0):
            continue
        going.append((item.path, f"older than the newest {keep}"))
    return tuple(reversed(going))
