"""The newest checkpoint that can be used: of the run itself or of the line that it was resumed from, of no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from reknit.core.errors import CheckpointError, ReknitError
from reknit.core.lineage import ancestry
from reknit.core.manifest import Listed, Manifest, list_manifests, parse_directory, run_of, verify

T = TypeVar("T")


def candidates(listed: Sequence[Listed], *, run: str = "", resume: bool = False, after: str = "") -> list[Listed]:
    """Return the checkpoints that a run may begin from, the newest first, unreadable ones last.

    Args:
        listed: the job's, as `list_manifests` gives them.
        run: the run that begins, or begins again; empty: a new one, that resumes.
        resume: also those of the line that it was resumed from.
        after: newest run of that line; empty: that of the newest checkpoint.
    """
    known = [item for item in listed if not item.foreign]
    manifests = [item.manifest for item in known if item.manifest is not None]
    written = {manifest.run for manifest in manifests}
    runs, strangers = frozenset({run}), False
    if resume or not run:
        # what cannot be read, of a run of which nothing can be, may be newer than all: it is named, not passed over
        strangers = not after
        after = after or (manifests[0].run if manifests else run)
        runs = ancestry(manifests, run) | ancestry(manifests, after)
    return [item for item in known if (of := _run_of(item)) in runs or (strangers and of not in written)]


def newest(
    checkpoint_dir: Path, job: str, read: Callable[[Path], T], *, run: str = "", resume: bool = False, after: str = ""
) -> tuple[T | None, tuple[str, ...]]:
    """Return what `read` makes of the newest checkpoint that it does not reject, and why newer ones were skipped.

    Args:
        checkpoint_dir: folder of all jobs' checkpoints.
        job: name of the job.
        read: gets a checkpoint's directory; raises a `ReknitError` to reject it.
        run: as for `candidates`.
        resume: as for `candidates`.
        after: as for `candidates`.

    Raises:
        CheckpointError: there are checkpoints, and all are bad: never a silent start from zero, nor from those of
            another line.
    """
    listed = candidates(list_manifests(checkpoint_dir, job), run=run, resume=resume, after=after)
    skipped = [item.problem for item in listed if item.problem]  # whether they are newer, only they could tell
    for item in listed:
        if item.problem:
            continue
        try:
            return read(item.path), tuple(skipped)
        except ReknitError as error:
            skipped.append(str(error))
    if skipped:
        raise CheckpointError(
            f"no checkpoint of job {job} can be used: " + "; ".join(skipped),
            hint="mend or remove the damaged checkpoints, resume another run with --resume-run, "
            "or start under another job name",
        )
    return None, ()


def newest_verified(
    checkpoint_dir: Path, job: str, *, run: str = "", resume: bool = False, after: str = ""
) -> tuple[Manifest | None, tuple[str, ...]]:
    """Return the newest checkpoint that verifies, None if there is none at all, and why newer ones were skipped.

    Raises:
        CheckpointError: as `newest`.
    """
    return newest(checkpoint_dir, job, verify, run=run, resume=resume, after=after)


def _run_of(listed: Listed) -> str:
    """The run that took it; where the manifest cannot be read, its id tells (`checkpoint_id`)."""
    if listed.manifest is not None and not listed.problem:
        return listed.manifest.run
    parsed = parse_directory(listed.path.name)
    return run_of(parsed[1]) if parsed is not None else ""
