"""The page's table of what happens to memberships is the tests' own, and each case in it is tried somewhere."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from reknit.core.decision import Told
from reknit.services.membership.decide import decide
from reknit.services.membership.view import View
from support.case_table import ROWS, Row, docs
from support.town import JOB, House, Town

TESTS = Path(__file__).resolve().parents[1]


def test_the_page_has_the_table() -> None:
    page = (TESTS.parent / "docs" / "membership.md").read_text()
    assert docs() in page, f"docs/membership.md lacks the table; it should have\n{docs()}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what[:40])
def test_each_case_is_tried(row: Row) -> None:
    assert row.tests
    for name in row.tests:
        file, _, test = name.partition("::")
        found = re.findall(r"^(?:async )?def (test_\w+)\(", (TESTS / file).read_text(), re.MULTILINE)
        assert any(f.startswith(test) for f in found), f"no {name}"


@pytest.mark.parametrize("names", [["a-0", "b-0"], ["b-0", "a-0"]])
def test_equal_times_are_no_tie(names: list[str]) -> None:
    """All that is told has one and the same time: two services still come to one world, and to the same one."""
    town = Town(houses=2, min_nodes=2, max_nodes=2)
    town.houses[1] = House(View(JOB, "m1"), None)
    town.houses[1].view = town.replay()
    for name in names:
        town.register(name)  # town.now stands still
    assert len({town.stored[i] for i in range(len(town.stored))}) == 1
    town.run(1.0)
    assert [w.generation for w in town.worlds] == [1]
    assert town.members == ["a-0", "b-0"]
    assert town.houses[0].view.record == town.houses[1].view.record


def test_no_clock_of_a_speaker_counts() -> None:
    """The same log, spoken by people whose clocks are years apart, is the same record."""
    town = Town(min_nodes=1, max_nodes=3)
    town.begin("a-0", "b-0", "c-0")
    town.committed(3)
    town.kill("b-0")
    town.run(1.0)
    town.register("b-0", 2)
    town.run(1.0)
    chance = random.Random(7)
    view = View(JOB, "m9")
    for seq, event, _ in town.log:
        wall = chance.uniform(-1e9, 1e10)
        view = decide(view, Told(JOB, event, town.now, seq=seq, live=False, wall=wall, at=town.stored[seq - 1])).state
    assert view.record == town.houses[0].view.record
