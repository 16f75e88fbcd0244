"""What the service does on disk: manifests written last, given-up and expendable checkpoints removed.

Deletes files one by one, by the names that a manifest gives or that workers of this project write; a directory that
then still holds something else stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from reknit.core.durable import TEMP_SUFFIX, sync_directory
from reknit.core.errors import CheckpointError
from reknit.core.manifest import (
    MANIFEST,
    PIN,
    Manifest,
    is_checkpoint_file,
    list_manifests,
    parse_directory,
    read_manifest,
    write_manifest,
)
from reknit.core.retention import expendable


def commit(root: Path, draft: Manifest) -> Manifest:
    """Write the manifest of a checkpoint whose files are durable; what exists already is returned as it is.

    Args:
        root: folder of all jobs' checkpoints.
        draft: the manifest without number and time.

    Raises:
        CheckpointError: a file is not here with its size.
        OSError: the manifest could not be written.
    """
    path = root / draft.job / draft.directory
    if (path / MANIFEST).exists():
        with contextlib.suppress(CheckpointError):  # a damaged one is written anew
            manifest = read_manifest(path)
            tidy(path, {stored.file for stored in manifest.files})
            return manifest
    for stored in draft.files:
        try:
            size = (path / stored.file).stat().st_size
        except OSError as error:
            raise CheckpointError(
                f"{stored.file}, which {stored.worker} wrote, is not in {path} here: {error.strerror}",
                hint="all nodes and the checkpoint service must see the same checkpoint directory",
            ) from error
        if size != stored.bytes:
            raise CheckpointError(f"{path / stored.file} has {size} bytes, {stored.worker} wrote {stored.bytes}")
    numbers = [item.manifest.number for item in list_manifests(root, draft.job) if item.manifest is not None]
    manifest = msgspec.structs.replace(draft, number=max(numbers, default=0) + 1, created=time.time())
    try:
        write_manifest(path, manifest)
    except FileNotFoundError:
        return read_manifest(path)  # another service of the same job was faster, and tidied
    tidy(path, {stored.file for stored in manifest.files})
    return manifest


@dataclasses.dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did and found.

    Attributes:
        deleted: (id, reason) of each committed checkpoint that was deleted.
        found: manifests of checkpoints that count as given up, but are complete: the service was killed between
            manifest and announcement.
    """

    deleted: tuple[tuple[str, str], ...] = ()
    found: tuple[Manifest, ...] = ()


def sweep(
    root: Path, job: str, run: str, *, keep: int, given_up: Collection[str] = (), kept: Collection[str] = ()
) -> Swept:
    """Remove what given-up checkpoints left behind, and the checkpoints that retention lets go.

    Args:
        root: folder of all jobs' checkpoints.
        job: whose.
        run: the present run.
        keep: how many of the newest stay.
        given_up: ids of checkpoints that failed.
        kept: ids of committed checkpoints that the log does not call deleted; one without a manifest was being deleted
            when the service was killed, and that is finished.

    Raises:
        OSError: the folder cannot be read or changed.
    """
    folder = root / job
    if not folder.is_dir():
        return Swept()
    directories = {parsed[1]: path for path in folder.iterdir() if (parsed := parse_directory(path.name))}
    for checkpoint in (*given_up, *kept):
        path = directories.get(checkpoint)
        if path is not None and not (path / MANIFEST).exists():
            tidy(path, frozenset())
            _remove_directory(path)
    deleted = [(c, "its files are gone") for c in kept if not _has_manifest(directories.get(c))]
    listed = list_manifests(root, job)
    for path, manifest, reason in expendable(listed, run=run, keep=keep):
        with contextlib.suppress(CheckpointError):  # another service of the same job was faster
            delete(path)
        deleted.append((manifest.checkpoint, reason))
    gone = {checkpoint for checkpoint, _ in deleted}
    own = [item.manifest for item in listed if item.manifest is not None and not item.problem]
    found = tuple(m for m in own if m.checkpoint in given_up and m.checkpoint not in gone)
    return Swept(tuple(deleted), found)


def _has_manifest(path: Path | None) -> bool:
    return path is not None and (path / MANIFEST).exists()


def delete(path: Path) -> None:
    """Delete a committed checkpoint: the manifest first, so that no half of it counts; then what it named.

    Raises:
        CheckpointError: its manifest cannot be read.
        OSError: it cannot be changed.
    """
    files = [stored.file for stored in read_manifest(path).files]
    (path / MANIFEST).unlink(missing_ok=True)
    sync_directory(path)
    for name in (*files, PIN):
        (path / name).unlink(missing_ok=True)
    tidy(path, frozenset())
    _remove_directory(path)


def tidy(path: Path, keep: set[str] | frozenset[str]) -> None:
    """Remove files of workers that are not in `keep`: half-written ones, and those written twice.

    Raises:
        OSError: the directory cannot be changed.
    """
    try:
        files = list(path.iterdir())
    except FileNotFoundError:
        return  # another service of the same job was faster
    for file in files:
        name = file.name
        stem = name.removeprefix(".").removesuffix(TEMP_SUFFIX).rpartition(".")[0]
        half = name.startswith(".") and name.endswith(TEMP_SUFFIX) and (is_checkpoint_file(stem) or stem == MANIFEST)
        if half or (is_checkpoint_file(name) and name not in keep):
            file.unlink(missing_ok=True)


def _remove_directory(path: Path) -> None:
    with contextlib.suppress(OSError):  # something else is in it: not ours to delete
        path.rmdir()
        sync_directory(path.parent)
