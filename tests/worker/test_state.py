"""State that real scripts have: the same bits in plain torch, alone, and in a crew that loses a worker and gets one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import reknit
from reknit.core.context import Endpoint
from reknit.worker.state import copy_out, describe, load
from reknit.worker.tracked import Tracked
from support.cases import CASES, Case, hashes, make
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


def lose_one_get_one(crew: Crew) -> list[str]:
    """w1 dies in its second micro-batch of a step; later w3 receives the state and replays."""
    crew.start("w0", "w1", "w2", hold={"w1": (1, 1), "w2": (3, 0)})
    crew.world("w0", "w1", "w2")
    crew.held("w1")
    crew.kill("w1")
    crew.world("w0", "w2")
    crew.held("w2")
    crew.start("w3")
    crew.world("w0", "w2", "w3")
    crew.go("w2")
    return ["w0", "w2", "w3"]


def spare_takes_over(crew: Crew) -> list[str]:
    """w2 has no micro-batch until w1 dies."""
    crew.start("w0", "w1", "w2", hold={"w1": (3, 0)})
    crew.world("w0", "w1", "w2", w2="spare")
    crew.held("w1")
    crew.kill("w1")
    crew.world("w0", "w2")
    return ["w0", "w2"]


def other_weights_at_first(crew: Crew) -> list[str]:
    """All states are fresh and w1's is another one: before the first step it receives w0's."""
    crew.start("w0", "w1", seeds={"w1": 7})
    crew.world("w0", "w1")
    return ["w0", "w1"]


@pytest.mark.parametrize("history", [lose_one_get_one, spare_takes_over, other_weights_at_first])
@pytest.mark.parametrize("case", CASES)
def test_whatever_happens_the_bits_are_those_of_a_world_of_one(
    case: str, history: Callable[[Crew], list[str]], right: dict[str, Any], endpoint: Endpoint, tmp_path: Path
) -> None:
    expected = of_one(right, case, tmp_path)
    with Crew(endpoint, tmp_path, SCRIPT, case=case) as crew:
        names = history(crew)
        results = crew.finish(*names)
    for worker, result in results.items():
        assert first_difference(result, expected) == "", worker
    assert len(results["w0"]["trail"]) == len(expected["trail"])


def test_a_candidate_replays_metrics_averages_and_scales(endpoint: Endpoint, tmp_path: Path) -> None:
    """It catches up beside the ring, goes through the user's loop with each result, and is then taken in."""
    expected = alone(SCRIPT, tmp_path, case="many", epochs=8)
    with Crew(endpoint, tmp_path, SCRIPT, case="many", epochs=8, pace=0.01) as crew:
        crew.start("w0", "w1", hold={"w0": (30, 0)})
        crew.world("w0", "w1")
        crew.join("w2", "w0", "w1", pace=0.0)
        crew.go("w0")
        results = crew.finish("w0", "w1", "w2")
    for worker, result in results.items():
        assert first_difference(result, expected) == "", worker
    assert len(results["w2"]["trail"]) > 5


@pytest.mark.parametrize("case", CASES)
def test_a_state_fits_fresh_objects_at_any_step_and_is_not_touched(case: str) -> None:
    """Before the first step optimizers have no state, after it they have; both ways, with all groups and options."""
    c = make(case)
    with reknit.join() as ring:
        ring.track(**c.objects())
        for step in ring.steps(c.dataset, micro_batch=c.micro, slots=c.slots, epochs=c.epochs, seed=3):
            if step.index in (0, 1, 4):
                assert_travels(c, make(case, 9))
                worn = make(case, 9)
                for p in worn.objects()["model"].parameters():
                    p.grad = torch.ones_like(p) if p.requires_grad else None
                for optimizer in (o for o in worn.objects().values() if isinstance(o, torch.optim.Optimizer)):
                    optimizer.step()
                assert_travels(c, worn)
            for batch in step:
                c.inner(step, batch)
            c.after(step, ring)


def assert_travels(c: Case, other: Case) -> None:
    """The state of one set of objects, put into another, is the same there and as before here."""
    before = hashes(c)
    tracked = Tracked(**c.objects())
    layout = describe(tracked)
    memory = bytearray(layout.total)
    copy_out(tracked, layout, memory)
    load(Tracked(**other.objects()), layout, memory)
    assert hashes(other) == before == hashes(c)
