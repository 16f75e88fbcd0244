"""The page's table of breaks is the tests' own, and each break in it is tried somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.break_table import ROWS, docs

TESTS = Path(__file__).resolve().parents[1]


def test_the_page_has_the_table() -> None:
    page = (TESTS.parent / "docs" / "ring.md").read_text()
    assert docs() in page, f"docs/ring.md lacks the table; it should have\n{docs()}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what[:40])
def test_each_break_is_tried(row) -> None:
    assert row.tests
    for name in row.tests:
        file, _, test = name.partition("::")
        found = re.findall(r"^def (test_\w+)\(", (TESTS / file).read_text(), re.MULTILINE)
        assert any(f.startswith(test) for f in found), f"no {name}"
