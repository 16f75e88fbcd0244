"""A checkpoint from disk into memory, every file checked on the way, for `state.load`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import xxhash

from reknit.core.errors import CheckpointError, ReknitError
from reknit.core.layout import Index, Layout, chunk_span
from reknit.core.manifest import Manifest, StoredFile, read_manifest
from reknit.core.newest import newest

_LONGEST_HEADER = 1 << 20
_READ = 4 * 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """A verified state.

    Attributes:
        manifest: what the checkpoint says of itself.
        layout: where the tensors lie in `memory`.
        memory: `layout.total` bytes.
    """

    manifest: Manifest
    layout: Layout
    memory: memoryview


def read_checkpoint(path: Path) -> Restored:
    """Read a checkpoint's directory; sizes and hashes are checked while reading.

    Raises:
        CheckpointError: names the first file that is missing or damaged.
    """
    manifest = read_manifest(path)
    try:
        index = Index.decode(_Checked(path, manifest.index).read_all())
    except CheckpointError:
        raise
    except ReknitError as error:
        raise CheckpointError(f"{path.name}/{manifest.index.file}: {error}") from error
    if index.chunks != len(manifest.chunks):
        raise CheckpointError(f"{path.name}: its index has {index.chunks} chunks, its manifest {len(manifest.chunks)}")
    memory = np.empty(index.layout.total, np.uint8).data
    for stored in manifest.chunks:
        first, end = chunk_span(index.layout.total, index.chunk_bytes, stored.number)
        _Checked(path, stored).read_flat(memory[first:end])
    return Restored(manifest, index.layout, memory)


def newest_state(
    checkpoint_dir: Path, job: str, *, run: str = "", resume: bool = False, after: str = ""
) -> tuple[Restored | None, tuple[str, ...]]:
    """Return the newest checkpoint that can be read, None if there is none at all, and why newer ones were skipped.

    Args:
        checkpoint_dir: folder of all jobs' checkpoints.
        job: name of the job.
        run: the run that begins; only its own checkpoints count, unless it resumes.
        resume: also those of the line that it was resumed from.
        after: newest run of that line; empty: that of the newest checkpoint.

    Raises:
        CheckpointError: there are checkpoints, and all are bad.
    """
    return newest(checkpoint_dir, job, read_checkpoint, run=run, resume=resume, after=after)


class _Checked:
    """One stored file, read once, its length and hash compared with the manifest's."""

    def __init__(self, directory: Path, stored: StoredFile) -> None:
        self._name = f"{directory.name}/{stored.file}"
        self._stored = stored
        try:
            self._file = (directory / stored.file).open("rb", buffering=0)
        except OSError as error:
            raise CheckpointError(f"{self._name}: {error.strerror}") from error
        self._hasher = xxhash.xxh3_128()
        self._length = 0

    def read_all(self) -> bytes:
        """Return the whole file.

        Raises:
            CheckpointError: it is damaged.
        """
        with self._file:
            data = bytearray(self._stored.bytes)
            self._fill(memoryview(data))
            self._finish()
        return bytes(data)

    def read_flat(self, target: memoryview) -> None:
        """Read the one tensor of a chunk's file into `target`.

        Raises:
            CheckpointError: it is damaged, or its tensor has another size.
        """
        with self._file:
            head = bytearray(8)
            self._fill(memoryview(head))
            length = int.from_bytes(head, "little")
            if not 0 < length <= _LONGEST_HEADER:
                raise CheckpointError(f"{self._name} is no safetensors file")
            text = bytearray(length)
            self._fill(memoryview(text))
            self._check_header(bytes(text), len(target))
            self._fill(target)
            self._finish()

    def _check_header(self, text: bytes, size: int) -> None:
        try:
            offsets = json.loads(text)["flat"]["data_offsets"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self._name} has a damaged header") from error
        if offsets != [0, size]:
            raise CheckpointError(f"{self._name} holds the bytes {offsets}, not [0, {size}]")

    def _fill(self, target: memoryview) -> None:
        at = 0
        while at < len(target):
            try:
                count = self._file.readinto(target[at : at + _READ])
            except OSError as error:
                raise CheckpointError(f"{self._name}: {error.strerror}") from error
            if not count:
                raise CheckpointError(f"{self._name} has {self._length} bytes, not {self._stored.bytes}")
            self._hasher.update(target[at : at + count])
            at += count
            self._length += count

    def _finish(self) -> None:
        if self._file.read(1) or self._length != self._stored.bytes:
            raise CheckpointError(f"{self._name} is not {self._stored.bytes} bytes long")
        found = self._hasher.hexdigest()
        if found != self._stored.hash:
            raise CheckpointError(f"{self._name} is damaged: its hash is {found}, not {self._stored.hash}")
