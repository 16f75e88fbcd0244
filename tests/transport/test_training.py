"""Real training over gloo, in real processes: every history ends with the bits of a world of one, and loses no step."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from reknit.core.context import Endpoint
from reknit.core.events import RingRecovered
from support.crews import Crew, alone

SCRIPT = "support.cases:train"


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Some cases in a world of one, in fixed point."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REKNIT_TRANSPORT", "gloo")
        return {case: alone(SCRIPT, folder, case=case) for case in ("many", "amp", "odd")}


@pytest.fixture
def crew(endpoint: Endpoint, tmp_path: Path):
    with Crew(endpoint, tmp_path, SCRIPT, case="many") as crew:
        crew.transport = "gloo"
        yield crew


def check(results: dict[str, Any], expected: dict[str, Any], whole: tuple[str, ...]) -> None:
    """Equal after each step that a worker saw; these saw all of them."""
    for worker, result in results.items():
        for step, told in result["trail"].items():
            assert told == expected["trail"][step], (worker, step)
        assert result["final"] == expected["final"], worker
    for worker in whole:
        assert sorted(results[worker]["trail"]) == sorted(expected["trail"]), worker


def test_the_bits_are_not_those_of_the_fold(calm: dict[str, Any], tmp_path: Path) -> None:
    """If this fails, everything here tests the other transport."""
    assert alone(SCRIPT, tmp_path, case="many")["final"] != calm["many"]["final"]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_any_number_of_workers(calm: dict[str, Any], crew: Crew, count: int) -> None:
    names = tuple(f"w{n}" for n in range(count))
    crew.start(*names)
    crew.world(*names)
    check(crew.finish(*names), calm["many"], names)


@pytest.mark.parametrize("case", ["amp", "odd"])
def test_infinities_and_odd_tensors(calm: dict[str, Any], crew: Crew, case: str) -> None:
    """A scaler that overflows: Inf and NaN arrive as such and are told by name; doubles, complex, half, integers."""
    names = ("w0", "w1", "w2")
    crew.start(*names, case=case)
    crew.world(*names)
    results = crew.finish(*names)
    check(results, calm[case], names)
    assert all(r["nonfinite"] == calm[case]["nonfinite"] for r in results.values())
    assert bool(calm[case]["nonfinite"]) == (case == "amp")


def test_a_death_and_a_joiner(calm: dict[str, Any], crew: Crew) -> None:
    crew.start("w0", "w1", "w2", hold={"w1": (1, 1), "w2": (3, 0)})
    crew.world("w0", "w1", "w2")
    crew.held("w1")
    crew.kill("w1")
    crew.world("w0", "w2")
    crew.held("w2")
    crew.start("w3")
    crew.world("w0", "w2", "w3")
    crew.go("w2")
    check(crew.finish("w0", "w2", "w3"), calm["many"], ("w0", "w2"))


def test_a_candidate_learns_beside_the_ring(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the bounds with the state and with each result that it is fed."""
    monkeypatch.setenv("REKNIT_TRANSPORT", "gloo")
    expected = alone("support.paced:train", tmp_path)
    with Crew(endpoint, tmp_path, "support.paced:train") as crew:
        crew.transport = "gloo"
        crew.start("w0", "w1")
        crew.world("w0", "w1")
        crew.join("w2", "w0", "w1")
        crew.want("w0", "w1", "w2", place="hurry")
        results = crew.finish("w0", "w1", "w2")
    check(results, expected, ("w0", "w1"))
    assert results["w2"]["trail"]


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_swept_moments(calm: dict[str, Any], crew: Crew, seed: int) -> None:
    rng = random.Random(seed)
    names = ["w0", "w1", "w2", "w3"]
    victim = names[seed]
    at = (rng.randrange(1, 6), 0)
    crew.start(*names, hold={victim: at})
    crew.world(*names)
    crew.held(victim)
    crew.go(victim)
    time.sleep(rng.random() * 0.03)  # where it is then, in computing or in a collective, is what is swept
    crew.kill(victim)
    rest = [n for n in names if n != victim]
    crew.world(*rest)
    check(crew.finish(*rest), calm["many"], tuple(rest))
    assert crew.of(RingRecovered)


def test_a_frozen_worker_is_left_out_and_comes_back(calm: dict[str, Any], crew: Crew) -> None:
    crew.start("w0", "w1", "w2", hold={"w0": (2, 0), "w2": (5, 0)})
    crew.world("w0", "w1", "w2")
    crew.held("w0")
    pid = crew.processes["w1"].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        crew.go("w0")
        crew.world("w0", "w2")
        crew.held("w2")
    finally:
        os.kill(pid, signal.SIGCONT)
    crew.go("w2")
    check(crew.finish("w0", "w2"), calm["many"], ("w0", "w2"))
