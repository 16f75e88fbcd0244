"""What may be deleted, as a table: never the newest, never pinned, never foreign, never another line's."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from reknit.core.manifest import Listed, Manifest, StoredFile
from reknit.core.retention import expendable

INDEX = StoredFile(number=-1, file="index-w.msgpack", bytes=1, hash="")
CHUNK = StoredFile(number=0, file="chunk-00000-w.safetensors", bytes=1, hash="")


def item(
    step: int, *, run: str = "r", parent: str = "", pinned: bool = False, problem: str = "", job: str = "j"
) -> Listed:
    manifest = Manifest(
        checkpoint=f"{run}-{step}",
        number=step,
        job=job,
        run=run,
        step=step,
        index=INDEX,
        chunks=(CHUNK,),
        parent=parent,
    )
    return Listed(Path(manifest.directory), manifest, problem, foreign=job != "j", pinned=pinned)


def going(listed: list[Listed], **rule: int) -> list[int]:
    return [manifest.step for _, manifest, _ in expendable(listed, run="r", keep=rule.pop("keep", 2), **rule)]


STEPS = [60, 50, 40, 30, 20, 10]


@pytest.mark.parametrize(
    ("listed", "rule", "gone"),
    [
        ([item(s) for s in STEPS], {"keep": 2}, [10, 20, 30, 40]),
        ([item(s) for s in STEPS], {"keep": 6}, []),
        ([item(s) for s in STEPS], {"keep": 0}, [10, 20, 30, 40, 50]),
        ([item(s) for s in STEPS], {"keep": -3}, [10, 20, 30, 40, 50]),
        ([item(s) for s in STEPS], {"keep": 1, "every": 20}, [10, 30, 50]),
        ([item(60), item(50), item(40, pinned=True), item(30)], {"keep": 1}, [30, 50]),
        ([], {"keep": 1}, []),
    ],
)
def test_latest_n_every_k_and_pinned(listed: list[Listed], rule: dict[str, int], gone: list[int]) -> None:
    assert going(listed, **rule) == gone


def test_foreign_and_unreadable_ones_are_not_counted_and_not_named() -> None:
    listed = [
        item(9999, job="other", problem="belongs to job other"),
        item(60),
        item(50),
        item(40),
        Listed(Path("step-00000070-z"), None, "torn"),
    ]
    assert going(listed, keep=2) == [40]


def test_a_fresh_run_deletes_nothing_of_the_run_before() -> None:
    listed = [item(30), item(20), item(10), item(500, run="old"), item(400, run="old")]
    assert going(listed, keep=1) == [10, 20]


def test_a_resumed_run_goes_on_with_the_line_it_came_from() -> None:
    listed = [
        item(520),
        item(510, parent="old-500"),
        item(500, run="old", parent="old-400"),
        item(400, run="old"),
        item(450, run="other"),
    ]
    assert going(listed, keep=2) == [400, 500]


@given(
    st.lists(st.tuples(st.integers(1, 500), st.booleans(), st.booleans()), unique_by=lambda x: x[0], max_size=12),
    st.integers(-1, 5),
    st.integers(0, 50),
)
def test_the_newest_good_one_always_stays(rows: list[tuple[int, bool, bool]], keep: int, every: int) -> None:
    listed = [item(s, pinned=p, problem="bad" if b else "") for s, p, b in sorted(rows, reverse=True)]
    gone = going(listed, keep=keep, every=every)
    good = [s for s, _, bad in sorted(rows, reverse=True) if not bad]
    assert not set(gone) & set(good[: max(1, keep)])
    assert set(gone) <= set(good)
    assert all(not pinned for s, pinned, _ in rows if s in gone)
