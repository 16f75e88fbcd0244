"""Checkpoints for tests: small states, written by the real writer, committed as the service does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from reknit.core.events import CheckpointFailed, CheckpointWritten
from reknit.core.layout import chunk_count
from reknit.core.manifest import (
    INDEX_NUMBER,
    Manifest,
    StoredFile,
    assign,
    directory_name,
    file_numbers,
    list_manifests,
    write_manifest,
)
from reknit.worker.chunks import Writer
from reknit.worker.snapshot import Snapshot
from reknit.worker.state import copy_out, describe
from reknit.worker.tracked import Tracked

JOB = "job"
RUN = "run-a"
CHUNK = 4096


class Model(torch.nn.Module):
    """About 20 kB of parameters that all say which step they are of, and a buffer."""

    def __init__(self, step: int = 0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(5000))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.set(step)

    def set(self, step: int) -> None:
        """Take the state after `step` steps."""
        with torch.no_grad():
            self.weight.copy_(torch.arange(5000) * 0.5 + step)
        self.step.fill_(step)

    def says(self) -> int:
        """Return the step of the state; fails if it is mixed from several."""
        step = int(self.step)
        assert torch.equal(self.weight.detach(), torch.arange(5000) * 0.5 + step), f"torn state of step {step}"
        return step


def snapshot(step: int, *, model: Model | None = None, chain: int = 7, generation: int = 1) -> Snapshot:
    """A snapshot of the model at a step."""
    tracked = Tracked(model=model or Model(step))
    layout = describe(tracked)
    memory = memoryview(bytearray(layout.total))
    copy_out(tracked, layout, memory)
    return Snapshot(step, chain=chain, generation=generation, layout=layout, memory=memory)


def write_files(
    root: Path, step: int, checkpoint: str, workers: Sequence[str] = ("w0",), *, chunk_bytes: int = CHUNK
) -> list[CheckpointWritten | CheckpointFailed]:
    """Write all files of a checkpoint, each worker its part."""
    said: list[CheckpointWritten | CheckpointFailed] = []
    copied = snapshot(step)
    numbers = file_numbers(chunk_count(copied.layout.total, chunk_bytes))
    for worker, part in assign(numbers, workers).items():
        writer = Writer(
            worker, job=JOB, checkpoint_dir=root, on_written=said.append, on_failed=said.append, chunk_bytes=chunk_bytes
        )
        writer.write(copied, checkpoint, part, writers=workers)
        assert writer.close(30)
    return said


def manifest_of(root: Path, written: Sequence[CheckpointWritten], *, run: str = RUN, parent: str = "") -> Manifest:
    """The manifest of written files, with the next number."""
    files = {
        w.chunk: StoredFile(number=w.chunk, file=w.file, bytes=w.bytes, hash=w.hash, worker=w.worker) for w in written
    }
    index = files.pop(INDEX_NUMBER)
    numbers = [item.manifest.number for item in list_manifests(root, JOB) if item.manifest]
    return Manifest(
        checkpoint=written[0].checkpoint,
        number=max(numbers, default=0) + 1,
        job=JOB,
        run=run,
        step=written[0].step,
        index=index,
        chunks=tuple(files[n] for n in sorted(files)),
        parent=parent,
        chain=written[0].chain,
    )


def save(
    root: Path,
    step: int,
    checkpoint: str = "",
    *,
    run: str = RUN,
    parent: str = "",
    workers: Sequence[str] = ("w0", "w1"),
) -> Path:
    """Make a whole committed checkpoint and return its directory."""
    checkpoint = checkpoint or f"{run}-{step}"
    written = [w for w in write_files(root, step, checkpoint, workers) if isinstance(w, CheckpointWritten)]
    path = root / JOB / directory_name(step, checkpoint)
    write_manifest(path, manifest_of(root, written, run=run, parent=parent))
    return path
