"""More workers than a machine has room for: said, with the memory they take."""

from __future__ import annotations

import pytest

from reknit.cli.crowd import crowded

_GIB = 2**30


@pytest.mark.parametrize(("workers", "cores"), [(1, 1), (2, 2), (8, 2), (64, 64)])
def test_what_a_machine_has_room_for_is_not_worth_a_word(workers: int, cores: int) -> None:
    assert not crowded(workers, cores, 64 * _GIB)


def test_too_many_for_the_cores() -> None:
    said = crowded(500, 2, 64 * _GIB)
    assert said.startswith("500 workers on 2 cores: they take about 19.5 GiB before any model, 64.0 GiB are free")
    assert "--nproc-per-node auto" in said


def test_too_many_for_the_memory() -> None:
    said = crowded(4, 8, 100 * 2**20)
    assert "160 MiB before any model, 100 MiB are free" in said
    assert "share the cores" not in said


def test_memory_that_is_not_known_is_not_invented() -> None:
    assert not crowded(8, 2, 0)
    assert "free" not in crowded(9, 2, 0)
