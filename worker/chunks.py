"""Writes this worker's part of a checkpoint: chunks of the flat bytes as safetensors files, and the index.

    writer.write(snapshot, checkpoint, assign(chunk_numbers(…), ring)[me])
    …on_written(CheckpointWritten) for each file that is durable, or once on_failed(CheckpointFailed)

The cut does not depend on how many workers there are, so any number of them can write or read it. Each file is one
tensor of bytes named `flat`; which tensors of the model are in it, the index tells. Nothing here waits for another
worker: there is no collective in a save.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
import xxhash

from reknit.core.durable import DurableFile, make_directory
from reknit.core.errors import StateError
from reknit.core.events import CheckpointFailed, CheckpointWritten
from reknit.core.layout import Index, chunk_count, chunk_span
from reknit.core.manifest import INDEX_NUMBER, chunk_file, directory_name

from .snapshot import Snapshot

CHUNK_BYTES = 16 * 1024 * 1024
_PIECE = 4 * 1024 * 1024  # hashed and written at a time; between two a cancelled write ends
_log = structlog.get_logger(__name__)


def chunk_numbers(total: int, chunk_bytes: int = CHUNK_BYTES) -> range:
    """Return the numbers of all files of a state of `total` bytes: the index (-1) and the chunks (0, 1, …)."""
    return range(INDEX_NUMBER, chunk_count(total, chunk_bytes))


def assign(chunks: Sequence[int], workers: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Give each worker its part of the files: neighbouring chunks, parts as even as possible, in ring order.

    The index goes with chunk 0 and does not count. Pure: every worker computes the same.

    Raises:
        StateError: there is no worker.
    """
    if not workers:
        raise StateError("nobody is there to write the checkpoint")
    data = sorted(n for n in set(chunks) if n != INDEX_NUMBER)
    size, extra = divmod(len(data), len(workers))
    parts: dict[str, tuple[int, ...]] = {}
    first = 0
    for i, worker in enumerate(workers):
        end = first + size + (i < extra)
        parts[worker] = tuple(data[first:end])
        first = end
    if INDEX_NUMBER in chunks:
        parts[workers[0]] = (INDEX_NUMBER, *parts[workers[0]])
    return parts


class _Cancelled(Exception):
    """The checkpoint was given up while it was written."""


class Writer:
    """Writes on a thread of its own; the worker goes on whatever happens to the disk.

    Args:
        worker: this worker's name; part of the file names, so two writers never touch one file.
        job: name of the job.
        checkpoint_dir: folder of all jobs' checkpoints.
        on_written: called on the writer's thread for each durable file.
        on_failed: called on the writer's thread once for a checkpoint that could not be written.
        chunk_bytes: where the flat bytes are cut; the same on all workers.
    """

    def __init__(
        self,
        worker: str,
        *,
        job: str,
        checkpoint_dir: Path,
        on_written: Callable[[CheckpointWritten], None],
        on_failed: Callable[[CheckpointFailed], None],
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._worker = worker
        self._root = checkpoint_dir / job
        self._on_written = on_written
        self._on_failed = on_failed
        self.chunk_bytes = chunk_bytes
        self._orders: queue.SimpleQueue[tuple[Snapshot, str, tuple[int, ...]] | None] = queue.SimpleQueue()
        self._given_up: set[str] = set()
        self._thread: threading.Thread | None = None

    def write(self, snapshot: Snapshot, checkpoint: str, chunks: Sequence[int]) -> None:
        """Write these files of the snapshot as part of a checkpoint; returns at once, holds the snapshot until done.

        Args:
            snapshot: what to write.
            checkpoint: id of the checkpoint.
            chunks: numbers of the files, -1 for the index; called again with more of them when a writer was lost.
        """
        if not chunks:
            return
        snapshot.hold()
        self._orders.put((snapshot, checkpoint, tuple(chunks)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
            self._thread.start()

    def cancel(self, checkpoint: str) -> None:
        """Stop writing a checkpoint that was given up or is committed; nothing is reported for it any more."""
        self._given_up.add(checkpoint)

    def close(self, timeout: float) -> bool:
        """Finish what was asked for; return False if it was not done within `timeout` seconds."""
        if self._thread is None:
            return True
        self._orders.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            snapshot, checkpoint, chunks = order
            try:
                if checkpoint not in self._given_up:
                    self._write(snapshot, checkpoint, chunks)
            except _Cancelled:
                _log.info("checkpoint cancelled while it was written", checkpoint=checkpoint)
            finally:
                snapshot.release()

    def _write(self, snapshot: Snapshot, checkpoint: str, chunks: tuple[int, ...]) -> None:
        directory = self._root / directory_name(snapshot.step, checkpoint)
        try:
            make_directory(directory)
            for chunk in chunks:
                written = self._write_file(directory, snapshot, checkpoint, chunk)
                if checkpoint in self._given_up:
                    raise _Cancelled
                self._on_written(written)
        except OSError as error:
            if checkpoint in self._given_up:
                return
            self._given_up.add(checkpoint)
            reason = f"{self._worker} cannot write to {directory}: {error.strerror or error}"
            _log.warning("checkpoint not written", checkpoint=checkpoint, reason=reason)
            self._on_failed(
                CheckpointFailed(checkpoint=checkpoint, reason=reason, step=snapshot.step, worker=self._worker)
            )

    def _write_file(self, directory: Path, snapshot: Snapshot, checkpoint: str, chunk: int) -> CheckpointWritten:
        began = time.monotonic()
        total = snapshot.layout.total
        name = chunk_file(chunk, self._worker)
        if chunk == INDEX_NUMBER:
            head, body = Index(layout=snapshot.layout, chunk_bytes=self.chunk_bytes).encode(), memoryview(b"")
        else:
            first, end = chunk_span(total, self.chunk_bytes, chunk)
            head = safetensors_header(end - first, checkpoint=checkpoint, step=snapshot.step, chunk=chunk, first=first)
            body = snapshot.memory[first:end]
        hasher = xxhash.xxh3_128()
        with DurableFile(directory / name) as file:
            for data in (memoryview(head), body):
                for at in range(0, len(data), _PIECE):
                    if checkpoint in self._given_up:
                        raise _Cancelled
                    piece = data[at : at + _PIECE]
                    hasher.update(piece)
                    file.write(piece)
        return CheckpointWritten(
            checkpoint=checkpoint,
            step=snapshot.step,
            worker=self._worker,
            file=name,
            chunk=chunk,
            chunks=chunk_count(total, self.chunk_bytes),
            bytes=len(head) + len(body),
            hash=hasher.hexdigest(),
            generation=snapshot.generation,
            chain=snapshot.chain,
            seconds=time.monotonic() - began,
        )


def safetensors_header(size: int, **facts: int | str) -> bytes:
    """Return the head of a safetensors file with one tensor `flat` of `size` bytes.

    Format: u64 length, then JSON padded with spaces to a multiple of 8 (https://github.com/huggingface/safetensors).
    """
    header = {
        "__metadata__": {name: str(value) for name, value in facts.items()},
        "flat": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
    }
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
