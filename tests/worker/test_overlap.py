"""Whether overlap pays: found out by trying, at the same steps everywhere, again in each world."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reknit.worker.overlap import AGAIN, BLOCK, BLOCKS, WATCH, Overlap


def run(
    overlap: Overlap, steps: range, took: Callable[[bool], float], waited: float = 0.3, world: int = 1
) -> list[int]:
    """Steps that overlapped; `took`: seconds of a step with and without."""
    found = []
    for step in steps:
        wanted = overlap.wanted(step)
        if wanted:
            found.append(step)
        seconds = took(wanted)
        overlap.completed(step, seconds, waited * seconds, world)
    return found


@pytest.mark.parametrize(("when", "steps"), [("on", list(range(100))), ("off", [])])
def test_what_is_told_is_done(when, steps):
    overlap = Overlap(when)
    assert run(overlap, range(100), lambda wanted: 0.1) == steps
    assert overlap.listening == (when == "on")


def test_a_ring_that_nobody_waits_for_is_not_tried():
    overlap = Overlap("auto")
    assert run(overlap, range(500), lambda wanted: 0.1, waited=0.05) == []
    assert not overlap.listening


def test_what_pays_is_kept():
    overlap = Overlap("auto")
    found = run(overlap, range(200), lambda wanted: 0.08 if wanted else 0.1)
    first = found[0]
    assert first % (2 * BLOCK) == 0
    assert found[:BLOCK] == list(range(first, first + BLOCK))
    assert found[BLOCK : 2 * BLOCK] == list(range(first + 2 * BLOCK, first + 3 * BLOCK))
    assert found[2 * BLOCK :] == list(range(first + BLOCKS * BLOCK, 200))
    assert overlap.said == ("gradients enter the ring during backward: a step takes 80.0 ms so, 100.0 ms otherwise")


@pytest.mark.parametrize("with_it", [0.098, 0.1, 0.15])
def test_what_does_not_pay_is_left(with_it):
    overlap = Overlap("auto")
    found = run(overlap, range(400), lambda wanted: with_it if wanted else 0.1)
    assert len(found) == BLOCKS * BLOCK / 2
    assert not overlap.listening
    assert "do not enter" in overlap.said


def test_the_trial_leaves_time_to_learn_how_gradients_come():
    for start in range(2 * BLOCK):
        overlap = Overlap("auto")
        heard = None
        for step in range(start, start + 200):
            if overlap.listening and heard is None:
                heard = step
            if overlap.wanted(step):
                assert heard is not None
                assert step - heard >= BLOCK - 1
                break
            overlap.completed(step, 0.1, 0.05, 1)


def test_all_workers_try_at_the_same_steps_whenever_they_began():
    early, late = Overlap("auto"), Overlap("auto")
    run(early, range(3), lambda wanted: 0.1)
    both = [run(o, range(3, 200), lambda wanted: 0.08 if wanted else 0.1) for o in (early, late)]
    assert both[0] == both[1]


def test_another_world_is_another_ring():
    overlap = Overlap("auto")
    assert run(overlap, range(200), lambda wanted: 0.08 if wanted else 0.1)[-1] == 199
    assert run(overlap, range(200, 200 + WATCH), lambda wanted: 0.1, world=2)[:1] == [200], (
        "told only by the step itself"
    )
    assert run(overlap, range(200 + WATCH, 400), lambda wanted: 0.12 if wanted else 0.1, world=2)[-1] < 300


def test_a_decision_is_looked_at_again():
    overlap = Overlap("auto")
    run(overlap, range(200), lambda wanted: 0.2 if wanted else 0.1)
    assert not run(overlap, range(200, AGAIN), lambda wanted: 0.1)
    assert run(overlap, range(AGAIN, AGAIN + 400), lambda wanted: 0.08 if wanted else 0.1)[-1] == AGAIN + 399


def test_one_slow_step_decides_nothing():
    overlap = Overlap("auto")
    slow = iter([5.0])
    found = run(overlap, range(200), lambda wanted: next(slow, 0.08) if wanted else 0.1)
    assert found[-1] == 199
