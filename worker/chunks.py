"""Writes this worker's part of a checkpoint: chunks of the flat bytes as safetensors files, and the index.

    writer.write(snapshot, checkpoint, assign(numbers, writers)[me], writers=writers)
    …on_written(CheckpointWritten) for each file that is durable, or once on_failed(CheckpointFailed)

The cut does not depend on how many workers there are, so any number of them can write or read it. Each file is one
tensor of bytes named `flat`; which tensors of the model are in it, the index tells. Nothing here waits for another
worker: there is no collective in a save.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from reknit.core import log
from reknit.core.durable import DurableFile, make_directory
from reknit.core.events import CheckpointFailed, CheckpointWritten
from reknit.core.layout import Index, chunk_count, chunk_span
from reknit.core.manifest import INDEX_NUMBER, chunk_file, directory_name
from reknit.core.manifest import assign as assign  # noqa: PLC0414 - it is part of what this module offers

from .snapshot import Snapshot

CHUNK_BYTES = 16 * 1024 * 1024
_PIECE = 4 * 1024 * 1024  # hashed and written at a time; between two a cancelled write ends
WORD = 3.0
"""Seconds to wait, where a file has vanished, for the word that its checkpoint is over: the service tidies up first."""
_log = log.get("checkpoint")


class _Cancelled(Exception):
    """The checkpoint was given up while it was written."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Order:
    snapshot: Snapshot
    checkpoint: str
    writers: tuple[str, ...]
    chunks: tuple[int, ...]
    check: Callable[[], str]


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
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._given_up: set[str] = set()
        self._word = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(
        self,
        snapshot: Snapshot,
        checkpoint: str,
        chunks: Sequence[int],
        *,
        writers: Sequence[str] = (),
        check: Callable[[], str] = str,
    ) -> None:
        """Write these files of the snapshot as part of a checkpoint; returns at once, holds the snapshot until done.

        Args:
            snapshot: what to write.
            checkpoint: id of the checkpoint.
            chunks: numbers of the files, -1 for the index; called again with more of them when a writer was lost.
            writers: all who hold a copy of this state, in ring order, told to the service with each file: when one of
                them dies, its part (by `assign`) is given to the others.
            check: called before anything is written, on the writer's thread; returns why nothing may be, or nothing.
        """
        if not chunks:
            return
        snapshot.hold()
        self._orders.put(_Order(snapshot, checkpoint, tuple(writers), tuple(chunks), check))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
            self._thread.start()

    def cancel(self, checkpoint: str) -> None:
        """Stop writing a checkpoint that was given up or is committed; nothing is reported for it any more."""
        with self._word:
            self._given_up.add(checkpoint)
            self._word.notify_all()

    def close(self, timeout: float) -> bool:
        """Finish what was asked for; return False if it was not done within `timeout` seconds."""
        if self._thread is None:
            return True
        self._orders.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                if order.checkpoint not in self._given_up:
                    self._write(order)
            except _Cancelled:
                _log.debug("checkpoint cancelled while it was written", checkpoint=order.checkpoint)
            except Exception as error:  # noqa: BLE001 - a callback that raises must not end all later saves
                _log.error("checkpoint not reported", checkpoint=order.checkpoint, exc_info=error)
            finally:
                order.snapshot.release()

    def _write(self, order: _Order) -> None:
        directory = self._root / directory_name(order.snapshot.step, order.checkpoint)
        if why := order.check():
            self._fail(order, f"{self._worker}: {why}")
            return
        try:
            make_directory(directory)
            for chunk in order.chunks:
                written = self._write_file(directory, order, chunk)
                if order.checkpoint in self._given_up:
                    raise _Cancelled
                self._on_written(written)
        except OSError as error:
            # what is gone may have been removed by the service (committed without us, or given up), or by anybody else
            if self._is_over(order.checkpoint, WORD if isinstance(error, FileNotFoundError) else 0.0):
                raise _Cancelled from None
            self._fail(order, f"{self._worker} cannot write to {directory}: {error.strerror or error}")

    def _is_over(self, checkpoint: str, within: float) -> bool:
        """True if the checkpoint is known to be given up or committed, now or within so many seconds."""
        with self._word:
            return self._word.wait_for(lambda: checkpoint in self._given_up, within)

    def _fail(self, order: _Order, reason: str) -> None:
        self._given_up.add(order.checkpoint)
        self._on_failed(
            CheckpointFailed(checkpoint=order.checkpoint, reason=reason, step=order.snapshot.step, worker=self._worker)
        )

    def _write_file(self, directory: Path, order: _Order, chunk: int) -> CheckpointWritten:
        began = time.monotonic()
        snapshot = order.snapshot
        total = snapshot.layout.total
        name = chunk_file(chunk, self._worker)
        if chunk == INDEX_NUMBER:
            head, body = Index(layout=snapshot.layout, chunk_bytes=self.chunk_bytes).encode(), memoryview(b"")
        else:
            first, end = chunk_span(total, self.chunk_bytes, chunk)
            body = snapshot.memory[first:end]
            head = safetensors_header(
                len(body), checkpoint=order.checkpoint, step=snapshot.step, chunk=chunk, first=first
            )
        hasher = xxhash.xxh3_128()
        with DurableFile(directory / name) as file:
            for data in (memoryview(head), body):
                for at in range(0, len(data), _PIECE):
                    if order.checkpoint in self._given_up:
                        raise _Cancelled
                    piece = data[at : at + _PIECE]
                    hasher.update(piece)
                    file.write(piece)
        return CheckpointWritten(
            checkpoint=order.checkpoint,
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
            writers=order.writers,
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
