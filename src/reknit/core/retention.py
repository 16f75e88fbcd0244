"""Which checkpoints are kept and which may go. Pure: it sees manifests only, and names only manifests.

A checkpoint goes when it belongs to the line of the present run and nothing keeps it: it is not among the newest n of
that line, not at an every-k step, not pinned. The line is the run itself and the checkpoints it descends from: a fresh
run under an old name never deletes what the run before it saved, and no foreign directory takes one of the n places.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reknit.core.manifest import Listed, Manifest


def expendable(
    listed: Sequence[Listed], *, run: str, keep: int, every: int = 0
) -> tuple[tuple[Path, Manifest, str], ...]:
    """Return (directory, manifest, reason) of what may be deleted, oldest first; never the newest of the line.

    Args:
        listed: the job's checkpoints, newest first, as `list_manifests` gives them.
        run: the present run.
        keep: how many of the newest stay; less than 1 means 1.
        every: those whose step is a multiple of this stay too; 0: none for that reason.
    """
    keep = max(1, keep)
    own = [
        (item, item.manifest) for item in listed if item.manifest is not None and not item.problem and not item.foreign
    ]
    line = _line([manifest for _, manifest in own], run)
    own = [(item, manifest) for item, manifest in own if manifest.checkpoint in line]
    going = [
        (item.path, manifest, f"older than the newest {keep}")
        for item, manifest in own[keep:]
        if not item.pinned and not (every > 0 and manifest.step % every == 0)
    ]
    return tuple(reversed(going))


def _line(manifests: Sequence[Manifest], run: str) -> set[str]:
    parents = {manifest.checkpoint: manifest.parent for manifest in manifests}
    line: set[str] = set()
    for manifest in manifests:
        at = manifest.checkpoint if manifest.run == run else ""
        while at in parents and at not in line:
            line.add(at)
            at = parents[at]
    return line
