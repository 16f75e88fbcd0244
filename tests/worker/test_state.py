"""State that real scripts have: the same bits in plain torch, alone, and in a crew that loses a worker and gets one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reknit.core.context import Endpoint
from support.cases import CASES
from support.crews import Crew, alone
from support.plain import plain

SCRIPT = "support.cases:train"


def first_difference(got: dict[str, Any], expected: dict[str, Any]) -> str:
    """The first step, and what of it, in which two trails differ; steps that a learner never saw do not count."""
    for step in sorted(got["trail"], key=int):
        mine, theirs = got["trail"][step], expected["trail"][step]
        if mine != theirs:
            objects = [n for n in theirs[0] if mine[0].get(n) != theirs[0][n]]
            names = ("objects", "loss", "metrics", "norm", "gradients")
            return f"step {step}: {[n for n, a, b in zip(names, mine, theirs, strict=True) if a != b]} {objects}"
    return "" if got["final"] == expected["final"] else f"final: {got['final']} {expected['final']}"


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each case in a world of one, run once."""
    return {}


def of_one(right: dict[str, Any], case: str, folder: Path) -> dict[str, Any]:
    if case not in right:
        right[case] = alone(SCRIPT, folder, case=case)
    return right[case]


@pytest.mark.parametrize("case", CASES)
def test_a_world_of_one_has_the_bits_of_plain_torch(case: str, right: dict[str, Any], tmp_path: Path) -> None:
    assert first_difference(of_one(right, case, tmp_path), plain(case)) == ""


@pytest.mark.parametrize("case", CASES)
def test_a_crew_that_loses_a_worker_and_gets_one(
    case: str, right: dict[str, Any], endpoint: Endpoint, tmp_path: Path
) -> None:
    with Crew(endpoint, tmp_path, SCRIPT, case=case) as crew:
        crew.start("w0", "w1", "w2", hold={"w1": (1, 1), "w2": (3, 0)})
        crew.world("w0", "w1", "w2")
        crew.held("w1")
        crew.kill("w1")
        crew.world("w0", "w2")
        crew.held("w2")
        crew.start("w3")
        crew.world("w0", "w2", "w3")
        crew.go("w2")
        results = crew.finish("w0", "w2", "w3")
    for worker, result in results.items():
        assert first_difference(result, of_one(right, case, tmp_path)) == "", worker
    assert len(results["w0"]["trail"]) == len(of_one(right, case, tmp_path)["trail"])
