"""The writer: files as told, errors said once, cancelling, a disk that is full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from reknit.core.durable import DurableFile, make_directory
from reknit.core.events import CheckpointFailed, CheckpointWritten
from reknit.core.layout import Index, chunk_count
from reknit.core.manifest import directory_name, write_manifest
from reknit.core.newest import newest_verified
from reknit.worker import chunks as module
from reknit.worker.chunks import Writer
from reknit.worker.restore import read_checkpoint
from support.checkpoints import CHUNK, JOB, Model, manifest_of, save, snapshot, write_files


def test_files_are_safetensors_and_say_what_they_are(tmp_path: Path) -> None:
    path = save(tmp_path, 12, "c")
    files = sorted(path.glob("chunk-*"))
    flat = b""
    for number, file in enumerate(files):
        flat += load_file(file)["flat"].tobytes()
        with safe_open(file, "np") as opened:
            assert opened.metadata() == {
                "checkpoint": "c",
                "chunk": str(number),
                "first": str(number * CHUNK),
                "step": "12",
            }
    copied = snapshot(12)
    assert flat == bytes(copied.memory)
    index = Index.decode(next(path.glob("index-*")).read_bytes())
    assert index.layout == copied.layout
    assert index.chunks == len(files) == chunk_count(copied.layout.total, CHUNK)


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 20])
def test_any_number_of_writers_makes_the_same_state(tmp_path: Path, workers: int) -> None:
    path = save(tmp_path, 5, workers=[f"w{i}" for i in range(workers)])
    restored = read_checkpoint(path)
    assert bytes(restored.memory) == bytes(snapshot(5).memory)


def test_what_is_reported_is_what_is_on_disk(tmp_path: Path) -> None:
    said = write_files(tmp_path, 5, "c", ["w0", "w1"])
    assert len(said) == len({w.file for w in said if isinstance(w, CheckpointWritten)})
    for w in said:
        assert isinstance(w, CheckpointWritten)
        assert (tmp_path / JOB / directory_name(5, "c") / w.file).stat().st_size == w.bytes
        assert (w.step, w.chain, w.generation, w.writers) == (5, 7, 1, ("w0", "w1"))
    assert not list((tmp_path / JOB).rglob("*.tmp"))


def test_an_empty_state_has_an_index_and_one_chunk(tmp_path: Path) -> None:
    from reknit.worker.snapshot import Snapshotter
    from reknit.worker.tracked import Tracked

    snapshotter = Snapshotter(Tracked())
    future = snapshotter.begin(0, chain=0, generation=0)
    snapshotter.wait()
    said: list[CheckpointWritten | CheckpointFailed] = []
    writer = Writer("w", job=JOB, checkpoint_dir=tmp_path, on_written=said.append, on_failed=said.append)
    writer.write(future.result(0), "c", (-1, 0))
    assert writer.close(30)
    written = [w for w in said if isinstance(w, CheckpointWritten)]
    path = tmp_path / JOB / directory_name(0, "c")
    write_manifest(path, manifest_of(tmp_path, written))
    assert len(read_checkpoint(path).memory) == 0


def test_a_directory_that_cannot_be_written_is_said_once_and_the_writer_lives(tmp_path: Path) -> None:
    (tmp_path / JOB).write_text("a file is in the way")
    said: list[CheckpointWritten | CheckpointFailed] = []
    writer = Writer("w1", job=JOB, checkpoint_dir=tmp_path, on_written=said.append, on_failed=said.append)
    writer.write(snapshot(5), "c", (0,))
    writer.write(snapshot(5), "c", (1,))
    assert writer._thread is not None
    wait_for(lambda: writer._orders.empty() and said)
    assert [type(x) for x in said] == [CheckpointFailed]
    assert isinstance(said[0], CheckpointFailed)
    assert said[0].worker == "w1"
    assert "w1 cannot write to" in said[0].reason
    assert "File exists" in said[0].reason
    (tmp_path / JOB).unlink()
    writer.write(snapshot(6), "d", (-1, 0))
    assert writer.close(30)
    assert [x.checkpoint for x in said] == ["c", "d", "d"]


def wait_for(true: object, seconds: float = 30.0) -> None:
    import time

    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_cancelled_checkpoint_leaves_no_half_file_and_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE", 512)
    writing, cancelled = threading.Event(), threading.Event()
    real = DurableFile.write

    def slow(self: DurableFile, data: memoryview | bytes) -> None:
        real(self, data)
        if self.written > 1000:
            writing.set()
            assert cancelled.wait(30)

    monkeypatch.setattr(DurableFile, "write", slow)
    said: list[CheckpointWritten | CheckpointFailed] = []
    writer = Writer(
        "w", job=JOB, checkpoint_dir=tmp_path, on_written=said.append, on_failed=said.append, chunk_bytes=CHUNK
    )
    copied = snapshot(5)
    writer.write(copied, "c", (0, 1, 2))
    assert writing.wait(30)
    writer.cancel("c")
    cancelled.set()
    assert writer.close(30)
    assert said == []
    assert list((tmp_path / JOB).rglob("*.*")) == []
    assert copied._holds == 1


@pytest.mark.parametrize("early", [True, False])
def test_files_that_the_service_removed_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    removed = threading.Event()
    real = DurableFile.write

    def write(self: DurableFile, data: memoryview | bytes) -> None:
        real(self, data)
        if early:
            writer.cancel("c")
        self.temp.unlink(missing_ok=True)
        removed.set()

    monkeypatch.setattr(DurableFile, "write", write)
    monkeypatch.setattr(module, "WORD", 60.0)
    said: list[CheckpointWritten | CheckpointFailed] = []
    writer = Writer("w", job=JOB, checkpoint_dir=tmp_path, on_written=said.append, on_failed=said.append)
    writer.write(snapshot(5), "c", (0,))
    assert removed.wait(30)
    if not early:
        assert not writer.close(0.1), "it waits for the word"
        writer.cancel("c")
    assert writer.close(30)
    assert said == []


@pytest.mark.parametrize("of", ["parent", "folder", "checkpoint"])
def test_a_directory_that_vanishes_while_it_is_written_to_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    root = tmp_path / "parent" / "folder"
    gone = {"parent": root.parent, "folder": root, "checkpoint": root / JOB / directory_name(5, "c")}[of]
    real = DurableFile.write

    def write(self: DurableFile, data: memoryview | bytes) -> None:
        real(self, data)
        if self.path.parent.name.endswith("-c"):
            shutil.rmtree(gone, ignore_errors=True)

    monkeypatch.setattr(DurableFile, "write", write)
    monkeypatch.setattr(module, "WORD", 0.05)
    said: list[CheckpointWritten | CheckpointFailed] = []
    writer = Writer("w", job=JOB, checkpoint_dir=root, on_written=said.append, on_failed=said.append)
    writer.write(snapshot(5), "c", (-1, 0))
    writer.write(snapshot(6), "d", (-1, 0))
    assert writer.close(30)
    assert [type(x) for x in said] == [CheckpointFailed, CheckpointWritten, CheckpointWritten]
    assert isinstance(said[0], CheckpointFailed)
    assert said[0].reason.startswith("w cannot write to ")
    assert said[0].reason.endswith("No such file or directory")
    assert [x.checkpoint for x in said] == ["c", "d", "d"], "the next one is written, the folders made anew"


def test_a_directory_that_cannot_be_made_for_want_of_a_parent_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORD", 0.05)
    said: list[CheckpointWritten | CheckpointFailed] = []
    writer = Writer("w", job=JOB, checkpoint_dir=Path("/proc/x"), on_written=said.append, on_failed=said.append)
    for step in (5, 10):
        writer.write(snapshot(step), f"c{step}", (-1, 0))
    assert writer.close(30)
    assert [type(x) for x in said] == [CheckpointFailed, CheckpointFailed]
    assert all("No such file or directory" in x.reason for x in said if isinstance(x, CheckpointFailed))


def test_a_callback_that_raises_ends_one_checkpoint_only(tmp_path: Path) -> None:
    said: list[str] = []

    def report(event: CheckpointWritten | CheckpointFailed) -> None:
        said.append(event.checkpoint)
        if event.checkpoint == "a":
            raise RuntimeError("the bus is closed")

    writer = Writer("w", job=JOB, checkpoint_dir=tmp_path, on_written=report, on_failed=report)
    writer.write(snapshot(1), "a", (0,))
    writer.write(snapshot(2), "b", (0,))
    assert writer.close(30)
    assert said == ["a", "b"]


# ------------------------------------------------------------------------------------------------- durable files


def test_a_file_is_synced_with_all_its_bytes_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        seen.append(("directory" if path.is_dir() else path.name, path.stat().st_size if path.is_file() else -1))
        assert path.is_dir() or not (tmp_path / "x").exists()
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with DurableFile(tmp_path / "x") as file:
        file.write(b"a" * 10)
        file.write(memoryview(b"b" * 5))
    assert seen == [(file.temp.name, 15), ("directory", -1)]
    assert (tmp_path / "x").read_bytes() == b"a" * 10 + b"b" * 5


def test_an_error_while_writing_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")

    def fail() -> None:
        with DurableFile(tmp_path / "x") as file:
            file.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "x").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_missing_parents_are_made(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b" / "c")
    make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


# ----------------------------------------------------------------------------------------------------- full disk


FULL_DISK = """
import os, sys, subprocess
from pathlib import Path
sys.path.insert(0, sys.argv[2])
root = Path(sys.argv[1])
mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(root)], capture_output=True, text=True)
if mounted.returncode:
    print("SKIP", mounted.stderr.strip()); sys.exit()
import torch
from reknit.core.events import CheckpointFailed, CheckpointWritten
from reknit.core.manifest import directory_name, write_manifest, assign, file_numbers
from reknit.core.newest import newest_verified
from reknit.core.layout import chunk_count
from reknit.worker.chunks import Writer
from reknit.worker.snapshot import Snapshotter
from reknit.worker.tracked import Tracked
from reknit.services.checkpoint import disk
from support.checkpoints import JOB, manifest_of

model = torch.nn.Linear(1500, 1000)  # 6 MB
said = []
writer = Writer("w0", job=JOB, checkpoint_dir=root, on_written=said.append, on_failed=said.append, chunk_bytes=1 << 20)
snapshotter = Snapshotter(Tracked(model=model))

def attempt(step):
    import time
    said.clear()
    future = snapshotter.begin(step, chain=0, generation=0)
    snapshotter.wait()
    snapshot = future.result(0)
    numbers = file_numbers(chunk_count(snapshot.layout.total, 1 << 20))
    writer.write(snapshot, f"c-{step}", tuple(numbers))
    end = time.monotonic() + 60
    while len(said) < len(numbers) and not any(isinstance(x, CheckpointFailed) for x in said):
        assert time.monotonic() < end
        time.sleep(0.005)
    snapshot.release()
    failed = [x for x in said if isinstance(x, CheckpointFailed)]
    if failed:
        return failed[0]
    write_manifest(root / JOB / directory_name(step, f"c-{step}"), manifest_of(root, said))
    return None

assert attempt(1) is None
assert attempt(2) is None
failed = attempt(3)                               # 12 of 16 MB are taken
assert failed is not None and failed.worker == "w0", said
assert "No space left on device" in failed.reason, failed.reason
assert not list(root.rglob("*.tmp")), list(root.rglob("*.tmp"))
manifest, skipped = newest_verified(root, JOB)
assert manifest.step == 2 and skipped == (), (manifest, skipped)
disk.sweep(root, JOB, "run-a", keep=5, given_up=["c-3"])     # what the service does when it hears of the failure
assert not (root / JOB / "step-00000003-c-3").exists()
assert newest_verified(root, JOB)[0].step == 2
disk.delete(root / JOB / "step-00000001-c-1")     # somebody makes room
assert attempt(4) is None
assert newest_verified(root, JOB)[0].step == 4

filler = root / "filler"                          # full to the last byte when the manifest comes
with open(filler, "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError:
        pass
draft = newest_verified(root, JOB)[0]
(root / JOB / draft.directory / "manifest.json").unlink()
with open(filler, "ab", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError:
        pass
try:
    disk.commit(root, draft)
except OSError as error:
    assert "No space left" in str(error)
else:
    raise AssertionError("a manifest on a full disk")
assert newest_verified(root, JOB)[0].step == 2
assert not list(root.rglob("*.tmp"))
filler.unlink()
disk.commit(root, draft)
assert newest_verified(root, JOB)[0].step == 4
print("DONE")
"""


def test_a_full_disk_fails_loudly_keeps_the_old_one_and_works_again_after(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    script = tmp_path / "script.py"
    script.write_text(FULL_DISK)
    tests = str(Path(__file__).parents[1])
    namespace = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        namespace = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"]
    done = subprocess.run(
        [*namespace, sys.executable, str(script), str(root), tests],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if "SKIP" in done.stdout or "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stdout}{done.stderr}")
    assert done.stdout.strip().endswith("DONE"), done.stdout + done.stderr
    assert list(root.iterdir()) == []


def test_the_model_of_these_tests_notices_a_torn_state() -> None:
    model = Model(3)
    model.weight.data[7] = 0
    with pytest.raises(AssertionError, match="torn"):
        model.says()
    assert newest_verified(Path("/nonexistent"), JOB) == (None, ())
