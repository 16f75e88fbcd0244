"""Which line of checkpoints is resumed: never another one in its place, and never one of two without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from reknit.cli.entry import beginning
from reknit.core.errors import UsageError
from reknit.core.events import JobSubmitted
from reknit.core.lineage import ancestry, chosen, lines
from reknit.core.manifest import Listed, Manifest, StoredFile, write_manifest
from reknit.core.newest import candidates

INDEX = StoredFile(number=-1, file="index-w.msgpack", bytes=0, hash="")
CHUNKS = (StoredFile(number=0, file="chunk-00000-w.safetensors", bytes=0, hash=""),)


def saved(*told: tuple[str, int, str]) -> list[Manifest]:
    """Manifests of (run, step, parent) in the order they were committed; ten steps an epoch, ids `<run>-<step>`."""
    return [
        Manifest(
            checkpoint=f"{run}-{step}",
            number=number,
            job="j",
            run=run,
            step=step,
            epoch=step // 10,
            parent=parent,
            index=INDEX,
            chunks=CHUNKS,
        )
        for number, (run, step, parent) in enumerate(told, 1)
    ]


def listed(manifests: list[Manifest]) -> list[Listed]:
    return [Listed(Path(m.directory), m) for m in sorted(manifests, key=lambda m: -m.number)]


ONE_LINE = saved(("a", 10, ""), ("a", 20, "a-10"), ("b", 30, "a-20"), ("c", 40, "b-30"))
SHORT_AFTER_LONG = saved(("a", 10, ""), ("a", 100, "a-10"), ("b", 5, ""))
LONG_AFTER_SHORT = saved(("a", 10, ""), ("b", 5, ""), ("b", 50, "b-5"))


def test_a_run_and_those_it_was_resumed_from_are_one_line() -> None:
    assert ancestry(ONE_LINE, "c") == {"a", "b", "c"}
    assert [line.run for line in lines(ONE_LINE)] == ["c"]
    assert [line.run for line in lines(SHORT_AFTER_LONG)] == ["b", "a"]


def test_a_parent_that_was_deleted_still_says_which_run_it_was_of() -> None:
    assert ancestry(ONE_LINE[3:], "c") == {"b", "c"}


def test_the_only_line_needs_no_name() -> None:
    line = chosen("j", ONE_LINE, "")
    assert line is not None
    assert str(line) == "run c at step 40 (epoch 5)"
    assert chosen("j", [], "") is None


def test_the_newest_line_if_no_other_has_come_further() -> None:
    line = chosen("j", LONG_AFTER_SHORT, "")
    assert line is not None
    assert (line.run, line.newest.step) == ("b", 50)


def test_where_an_earlier_run_has_come_further_nothing_is_guessed() -> None:
    with pytest.raises(UsageError, match="it is open which run") as caught:
        chosen("j", SHORT_AFTER_LONG, "")
    assert caught.value.hint == (
        "name it with --resume-run RUN: run b at step 5 (epoch 1); run a at step 100 (epoch 11)"
    )
    for run, step in (("a", 100), ("b", 5)):
        line = chosen("j", SHORT_AFTER_LONG, run)
        assert line is not None
        assert (line.run, line.newest.step) == (run, step)


def test_a_run_of_which_there_is_no_checkpoint() -> None:
    with pytest.raises(UsageError, match="no checkpoint of run 'x'") as caught:
        chosen("j", SHORT_AFTER_LONG, "x")
    assert "run a at step 100" in caught.value.hint


def steps(found: list[Listed]) -> list[tuple[str, int]]:
    return [(item.manifest.run, item.manifest.step) for item in found if item.manifest is not None]


def test_what_takes_the_place_of_a_damaged_one_is_of_the_same_line() -> None:
    # c goes on from a, which the user had named, although b is newer than a
    told = saved(("a", 10, ""), ("a", 20, "a-10"), ("b", 5, ""), ("c", 30, "a-20"))
    assert steps(candidates(listed(told), run="c", resume=True, after="a")) == [("c", 30), ("a", 20), ("a", 10)]
    assert steps(candidates(listed(told[:3]), run="c", resume=True, after="a")) == [("a", 20), ("a", 10)]
    assert steps(candidates(listed(told[:3]), run="c", resume=True)) == [("b", 5)]
    assert steps(candidates(listed(told), run="b", resume=False)) == [("b", 5)]


def test_what_cannot_be_read_is_named_if_it_may_be_the_newest() -> None:
    torn = Listed(Path("step-00000007-x-7"), None, "torn")
    found = [*listed(SHORT_AFTER_LONG), torn]
    assert torn in candidates(found, run="new", resume=True)
    assert torn not in candidates(found, run="new", resume=True, after="a")
    assert torn not in candidates(found, run="new")
    assert torn in candidates(found, run="x")


def place(root: Path, manifests: list[Manifest]) -> str:
    for manifest in manifests:
        folder = root / "j" / manifest.directory
        folder.mkdir(parents=True)
        write_manifest(folder, manifest)
    return str(root)


def test_the_submission_names_the_run_that_it_goes_on_from(tmp_path: Path) -> None:
    where = place(tmp_path, ONE_LINE)
    spec = JobSubmitted(run="new", script="s.py", checkpoint_dir=where, resume=True)
    settled, told = beginning(spec, "j")
    assert settled.resume_run == "c"
    assert told == "it goes on from run c at step 40 (epoch 5), checkpoint c-40"
    anew, told = beginning(JobSubmitted(run="new", script="s.py", checkpoint_dir=where), "j")
    assert not anew.resume_run
    assert told == "it begins at step 0; with --resume it would go on from the checkpoint of step 40"


def test_nothing_is_submitted_while_it_is_open_from_where(tmp_path: Path) -> None:
    where = place(tmp_path, SHORT_AFTER_LONG)
    with pytest.raises(UsageError, match="it is open which run"):
        beginning(JobSubmitted(run="new", script="s.py", checkpoint_dir=where, resume=True), "j")
    spec = JobSubmitted(run="new", script="s.py", checkpoint_dir=where, resume=True, resume_run="a")
    assert beginning(spec, "j")[1] == "it goes on from run a at step 100 (epoch 11), checkpoint a-100"
    assert "--resume-run RUN" in beginning(JobSubmitted(run="new", script="s.py", checkpoint_dir=where), "j")[1]


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    where = place(tmp_path, ONE_LINE)
    torn = tmp_path / "j/step-00000050-d-50"
    torn.mkdir()
    (torn / "manifest.json").write_text("{")
    told = beginning(JobSubmitted(run="new", script="s.py", checkpoint_dir=where, resume=True), "j")[1]
    assert "cannot be read: step-00000050-d-50" in told
