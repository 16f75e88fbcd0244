"""Program of test_crash: a child writes one checkpoint after another and is killed at a random moment; what is there?

Run as `python crash_writer.py ROOT ROUNDS SEED`; torch is imported once, each round is a fork of this process. Prints
one line of JSON at the end; an assertion that fails ends it with a traceback.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from reknit.core.events import CheckpointWritten
from reknit.core.layout import chunk_count
from reknit.core.manifest import MANIFEST, assign, file_numbers, is_checkpoint_file
from reknit.services.checkpoint import disk
from reknit.worker.chunks import Writer
from reknit.worker.restore import newest_state
from reknit.worker.state import load
from reknit.worker.tracked import Tracked
from support.checkpoints import CHUNK, JOB, RUN, Model, manifest_of, snapshot

KEEP = 2


def write_for_ever(root: Path, step: int, pipe: int) -> None:
    """The child: two workers and a service in one process, until it is killed."""
    while True:
        checkpoint = f"{RUN}-{step}"
        copied = snapshot(step)
        said: list[CheckpointWritten] = []
        parts = assign(file_numbers(chunk_count(copied.layout.total, CHUNK)), ["w0", "w1"])
        writers = [
            Writer(name, job=JOB, checkpoint_dir=root, on_written=said.append, on_failed=print, chunk_bytes=CHUNK)
            for name in parts
        ]
        for writer, part in zip(writers, parts.values(), strict=True):
            writer.write(copied, checkpoint, part)
        for writer in writers:
            writer.close(60)
        disk.commit(root, manifest_of(root, said))
        os.write(pipe, step.to_bytes(4, "big"))
        disk.sweep(root, JOB, RUN, keep=KEEP)
        step += 1


def one_round(root: Path, first: int, seconds: float) -> tuple[int, int, list[str]]:
    """Return the steps committed before the kill, the step that is found after it, and what lay about."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write_for_ever(root, first, writing)
        finally:
            os._exit(1)
    os.close(writing)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the writer ended by itself: {status}"
    told = b""
    while data := os.read(reading, 4096):
        told += data
    os.close(reading)
    committed = int.from_bytes(told[-4:], "big") if told else first - 1

    restored, skipped = newest_state(root, JOB, run=RUN)
    assert skipped == (), skipped
    found = 0
    if restored is not None:
        model = Model(-1)
        load(Tracked(model=model), restored.layout, restored.memory)
        found = model.says()
        assert found == restored.manifest.step
    assert found >= committed, f"step {committed} was committed, {found} is found"

    remains = [
        path.name
        for path in (root / JOB).rglob("*")
        if path.is_file() and path.name != MANIFEST and (path.suffix == ".tmp" or not (path.parent / MANIFEST).exists())
    ]
    ids = [f"{RUN}-{step}" for step in range(max(1, first - KEEP - 2), found + 1)]
    disk.sweep(root, JOB, RUN, keep=KEEP, given_up=[f"{RUN}-{found + 1}"], kept=ids)
    for path in (root / JOB).iterdir():
        assert (path / MANIFEST).exists(), f"{path} is left over"
        for file in path.iterdir():
            assert file.name == MANIFEST or is_checkpoint_file(file.name), f"{file} is left over"
    return committed, found, remains


def main() -> None:
    root, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    (root / JOB).mkdir(parents=True)
    step, in_writing, unannounced = 1, 0, 0
    for _ in range(rounds):
        committed, found, remains = one_round(root, step, chance.uniform(0.0, 0.12))
        in_writing += bool(remains)
        unannounced += found > committed
        step = found + 1
    print(json.dumps({"rounds": rounds, "checkpoints": step - 1, "hit_files": in_writing, "unannounced": unannounced}))


main()
