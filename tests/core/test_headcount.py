"""How many workers a world has, said apart from those that stand by."""

from __future__ import annotations

import pytest

from reknit.core.events import Member
from reknit.core.headcount import headcount, spares_of


def members(active: int, spare: int) -> list[Member]:
    return [
        Member(worker=f"w{i}", incarnation=1, node="n", pid=1, address="a:1", role="active" if i < active else "spare")
        for i in range(active + spare)
    ]


@pytest.mark.parametrize(
    ("active", "spare", "slots", "said"),
    [
        (0, 0, 0, "0 workers"),
        (1, 0, 0, "1 worker"),
        (2, 1, 0, "2 workers and 1 spare"),
        (2, 2, 8, "2 workers and 2 spares"),
        (9, 0, 2, "2 workers and 7 spares"),
        (3, 1, 2, "2 workers and 2 spares"),
        (2, 0, 2, "2 workers"),
    ],
)
def test_workers_and_spares(active: int, spare: int, slots: int, said: str) -> None:
    assert headcount(members(active, spare), slots) == said


def test_nobody_counts_twice() -> None:
    for active in range(5):
        for spare in range(4):
            for slots in range(7):
                assert 0 <= spares_of(members(active, spare), slots) <= active + spare
