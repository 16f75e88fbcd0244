"""Which checkpoint counts: verified, newest by number, of this job; and what is said about the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from reknit.core.errors import CheckpointError
from reknit.core.manifest import (
    MANIFEST,
    Manifest,
    StoredFile,
    assign,
    decode_manifest,
    encode_manifest,
    file_numbers,
    list_manifests,
    read_manifest,
    verify,
    write_manifest,
)
from reknit.core.newest import newest_verified
from reknit.worker.restore import newest_state, read_checkpoint
from reknit.worker.state import load
from reknit.worker.tracked import Tracked
from support.checkpoints import JOB, Model, save


def steps(found: tuple[Manifest | None, tuple[str, ...]]) -> int | None:
    return found[0].step if found[0] else None


def test_no_checkpoint_at_all_is_a_fresh_start(tmp_path: Path) -> None:
    assert newest_verified(tmp_path / "nowhere", JOB) == (None, ())
    assert newest_state(tmp_path, JOB) == (None, ())


def test_the_newest_is_found_and_holds_the_state(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    assert steps(newest_verified(tmp_path, JOB)) == 30
    restored, skipped = newest_state(tmp_path, JOB)
    assert restored is not None
    assert skipped == ()
    model = Model(0)
    load(Tracked(model=model), restored.layout, restored.memory)
    assert model.says() == 30
    assert restored.manifest.chain == 7


def test_a_manifest_comes_back_as_it_was() -> None:
    stored = StoredFile(number=0, file="chunk-00000-w0.safetensors", bytes=3, hash="ab", worker="w0")
    index = StoredFile(number=-1, file="index-w0.msgpack", bytes=3, hash="ab", worker="w0")
    manifest = Manifest(
        checkpoint="c", number=1, job=JOB, run="r", step=5, index=index, chunks=(stored,), chain=2**64 - 1
    )
    assert decode_manifest(encode_manifest(manifest)) == manifest


# ------------------------------------------------------------------------------------------------------- damage


def flip(path: Path) -> str:
    file = min(path.glob("chunk-00002-*"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return file.name


def truncate(path: Path) -> str:
    file = min(path.glob("chunk-00000-*"))
    file.write_bytes(file.read_bytes()[:-1])
    return file.name


def empty(path: Path) -> str:
    file = min(path.glob("index-*"))
    file.write_bytes(b"")
    return file.name


def swap(path: Path) -> str:
    first, second = sorted(path.glob("chunk-*"))[:2]
    spare = path / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    return first.name


def lengthen(path: Path) -> str:
    file = min(path.glob("chunk-00001-*"))
    file.write_bytes(file.read_bytes() + b"\0")
    return file.name


def remove(path: Path) -> str:
    file = min(path.glob("chunk-00001-*"))
    file.unlink()
    return file.name


def tear_manifest(path: Path) -> str:
    file = path / MANIFEST
    file.write_bytes(file.read_bytes()[:100])
    return path.name


def empty_manifest(path: Path) -> str:
    (path / MANIFEST).write_bytes(b"")
    return path.name


def change_number(path: Path) -> str:
    file = path / MANIFEST
    file.write_bytes(file.read_bytes().replace(b'"chain":7', b'"chain":6'))
    return path.name


DAMAGE = [flip, truncate, empty, swap, lengthen, remove, tear_manifest, empty_manifest, change_number]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_is_skipped_by_name_and_the_one_before_is_used(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    save(tmp_path, 10)
    save(tmp_path, 20)
    bad = damage(save(tmp_path, 30))
    for find in (newest_verified, newest_state):
        found, skipped = find(tmp_path, JOB)
        assert found is not None
        manifest = found if isinstance(found, Manifest) else found.manifest
        assert manifest.step == 20
        assert len(skipped) == 1
        assert bad in skipped[0]
        assert "step-00000030" in skipped[0]


@pytest.mark.parametrize("damage", DAMAGE)
def test_all_bad_is_an_error_and_never_a_silent_start_from_zero(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    bad = [damage(save(tmp_path, step)) for step in (10, 20)]
    for find in (newest_verified, newest_state):
        with pytest.raises(CheckpointError) as caught:
            find(tmp_path, JOB)
        assert all(name in str(caught.value) for name in bad)
        assert caught.value.hint


def test_every_single_flipped_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    good = (save(tmp_path, 10) / MANIFEST).read_bytes()
    whole = decode_manifest(good)
    for at in range(len(good)):
        data = bytearray(good)
        data[at] ^= 4
        try:
            assert decode_manifest(bytes(data)) == whole  # white space at the end
        except CheckpointError:
            continue


def test_half_a_checkpoint_without_manifest_does_not_exist(tmp_path: Path) -> None:
    save(tmp_path, 10)
    (save(tmp_path, 20) / MANIFEST).unlink()
    assert steps(newest_verified(tmp_path, JOB)) == 10
    shutil.rmtree(tmp_path / JOB / "step-00000010-run-a-10")
    assert newest_verified(tmp_path, JOB) == (None, ())


# --------------------------------------------------------------------------------------------- what is not ours


def test_foreign_directories_are_left_out(tmp_path: Path) -> None:
    mine = save(tmp_path, 40)
    (tmp_path / JOB / "ckpt-9999").mkdir()
    (tmp_path / JOB / "ckpt-9999" / MANIFEST).write_text("{}")
    other = tmp_path / JOB / "step-00009999-x"
    shutil.copytree(mine, other)
    manifest = msgspec.structs.replace(read_manifest(mine), job="another", checkpoint="x", step=9999, number=99)
    write_manifest(other, manifest)
    found, skipped = newest_verified(tmp_path, JOB)
    assert found is not None
    assert found.step == 40
    assert skipped == ()
    assert [item.foreign for item in list_manifests(tmp_path, JOB)] == [True, False]


def test_a_copied_directory_under_another_name_is_not_another_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(save(tmp_path, 40), tmp_path / JOB / "step-00009999-y")
    found, skipped = newest_verified(tmp_path, JOB)
    assert found is not None
    assert found.step == 40
    assert skipped[0].startswith("step-00009999-y: its manifest belongs to")


def test_newest_is_by_number_not_by_step(tmp_path: Path) -> None:
    save(tmp_path, 40)
    save(tmp_path, 60)
    save(tmp_path, 50, parent="run-a-40")  # went on from 40: 60 belongs to a lost line
    assert steps(newest_verified(tmp_path, JOB)) == 50


def test_only_the_same_run_unless_asked(tmp_path: Path) -> None:
    save(tmp_path, 100, run="old")
    assert steps(newest_verified(tmp_path, JOB, run="new")) is None
    assert steps(newest_verified(tmp_path, JOB, run="old")) == 100
    assert steps(newest_verified(tmp_path, JOB)) == 100
    save(tmp_path, 10, run="new")
    assert steps(newest_verified(tmp_path, JOB, run="new")) == 10
    assert steps(newest_verified(tmp_path, JOB)) == 10
    assert steps(newest_verified(tmp_path, JOB, run="old")) == 100


def test_all_of_a_line_damaged_is_an_error_though_another_line_is_whole(tmp_path: Path) -> None:
    save(tmp_path, 100, run="old")
    flip(save(tmp_path, 10, run="new"))
    with pytest.raises(CheckpointError, match="step-00000010") as caught:
        newest_verified(tmp_path, JOB)
    assert "--resume-run" in caught.value.hint
    for find in (newest_verified, newest_state):
        with pytest.raises(CheckpointError):
            find(tmp_path, JOB, run="next", resume=True, after="new")
    assert steps(newest_verified(tmp_path, JOB, run="next", resume=True, after="old")) == 100
    # the line goes on with what the run wrote itself, and falls back within it
    flip(save(tmp_path, 110, run="next", parent="old-100"))
    found, skipped = newest_verified(tmp_path, JOB, run="next", resume=True, after="old")
    assert found is not None
    assert (found.run, found.step) == ("old", 100)
    assert len(skipped) == 1


def test_a_torn_manifest_of_another_run_does_not_stop_a_fresh_one(tmp_path: Path) -> None:
    tear_manifest(save(tmp_path, 100, run="old"))
    assert newest_verified(tmp_path, JOB, run="new") == (None, ())
    with pytest.raises(CheckpointError):
        newest_verified(tmp_path, JOB, run="old")
    with pytest.raises(CheckpointError):
        newest_verified(tmp_path, JOB)


def test_names_outside_the_directory_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    manifest = read_manifest(path)
    bad = StoredFile(number=0, file="../../etc/passwd", bytes=1, hash="")
    with pytest.raises(CheckpointError, match="not a name of a checkpoint's file"):
        decode_manifest(encode_manifest(msgspec.structs.replace(manifest, chunks=(bad,))))
    with pytest.raises(CheckpointError, match="every chunk once"):
        decode_manifest(encode_manifest(msgspec.structs.replace(manifest, chunks=manifest.chunks[1:])))
    with pytest.raises(CheckpointError, match="format 2"):
        decode_manifest(encode_manifest(msgspec.structs.replace(manifest, format=2)))


def test_verify_accepts_what_was_written_and_a_manifest_is_readable_json(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    assert verify(path) == read_manifest(path) == read_checkpoint(path).manifest
    assert json.loads((path / MANIFEST).read_text())["manifest"]["step"] == 10


# ------------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_every_file_is_given_to_exactly_one_worker(chunks: int, workers: int) -> None:
    names = [f"w{i}" for i in range(workers)]
    parts = assign(file_numbers(chunks), names)
    assert list(parts) == names
    assert sorted(n for part in parts.values() for n in part) == list(range(-1, chunks))
    assert -1 in parts["w0"]
    counts = [len([n for n in part if n >= 0]) for part in parts.values()]
    assert max(counts) - min(counts) <= 1


def test_nobody_to_write_is_an_error() -> None:
    with pytest.raises(CheckpointError):
        assign(file_numbers(2), [])
