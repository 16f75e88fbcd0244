"""Re-planning by measured speed: worth it, patient, calm, and back again."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.core.events import JobSubmitted, ShardsPlanned, Terms, WorkerPulse
from reknit.core.plan import split
from reknit.services.shards.decide import decide
from reknit.services.shards.pace import by_speed, gain_of, predicted, shares
from reknit.services.shards.view import View
from support.desk import Desk
from support.history import member, registered, world

TERMS = Terms(slots=8, micro_batch=2, samples=100, epochs=2, seed=1)


def desk(*workers: str) -> Desk[View]:
    log: Desk[View] = Desk(decide, View("j"))
    log.publish(JobSubmitted(run="r1", script="t.py"), *(registered(w, TERMS) for w in workers))
    log.publish(world(1, *(member(w) for w in workers)))
    return log


def run(log: Desk[View], seconds: float, speed: dict[str, float], generation: int = 1) -> None:
    """Let time go on with heartbeats, four a second, of workers that need so many seconds a slot."""
    for _ in range(int(seconds * 4)):
        log.tick(0.25)
        slots = {r.worker: r.end - r.first for r in log.events(ShardsPlanned)[-1].ranges}
        for worker, per_slot in speed.items():
            log.pulse(
                WorkerPulse(
                    worker=worker,
                    incarnation=1,
                    generation=generation,
                    step=1,
                    committed=1,
                    compute_seconds=per_slot if slots.get(worker) else 0.0,
                    slots=slots.get(worker, 0),
                )
            )


def counts(log: Desk[View]) -> dict[str, int]:
    return {r.worker: r.end - r.first for r in log.events(ShardsPlanned)[-1].ranges}


def test_a_straggler_gets_fewer_slots_and_is_named_and_gets_them_back() -> None:
    log = desk("a", "b")
    run(log, 9, {"a": 0.05, "b": 0.25})
    assert len(log.events(ShardsPlanned)) == 1, "three checks at least five seconds apart come first"
    run(log, 8, {"a": 0.05, "b": 0.25})
    assert counts(log) == {"a": 7, "b": 1}
    assert (
        "b computes a slot in 250 ms, the others in 50 ms: 1 of 8 slots instead of 4"
        in log.events(ShardsPlanned)[-1].reason
    )
    run(log, 60, {"a": 0.05, "b": 0.05})
    assert counts(log) == {"a": 4, "b": 4}
    assert len(log.events(ShardsPlanned)) == 3


def test_equal_workers_and_small_differences_change_nothing() -> None:
    log = desk("a", "b", "c")
    rng = random.Random(1)
    for _ in range(100):
        run(log, 1, {w: 0.05 * rng.uniform(0.9, 1.1) for w in "abc"})
    assert len(log.events(ShardsPlanned)) == 1


def test_a_short_hiccup_changes_nothing() -> None:
    log = desk("a", "b")
    for _ in range(6):
        run(log, 5, {"a": 0.05, "b": 0.5})
        run(log, 12, {"a": 0.05, "b": 0.05})
    assert len(log.events(ShardsPlanned)) == 1


def test_a_worker_that_swings_makes_the_plan_change_more_and_more_seldom() -> None:
    log = desk("a", "b")
    for slow in itertools.islice(itertools.cycle((0.25, 0.05)), 20):
        run(log, 20, {"a": 0.05, "b": slow})
    changes = len(log.events(ShardsPlanned)) - 1
    assert 1 <= changes <= 8, changes


def test_noise_below_a_millisecond_changes_nothing() -> None:
    log = desk("a", "b")
    run(log, 60, {"a": 0.00001, "b": 0.00009})
    assert len(log.events(ShardsPlanned)) == 1


def test_unmeasured_workers_let_no_plan_be_changed() -> None:
    log = desk("a", "b")
    run(log, 60, {"a": 0.05})
    assert len(log.events(ShardsPlanned)) == 1


def test_a_known_straggler_keeps_its_small_share_in_the_next_world() -> None:
    log = desk("a", "b", "c")
    run(log, 16, {"a": 0.05, "b": 0.4, "c": 0.05})
    assert counts(log)["b"] == 1
    log.publish(world(2, member("a"), member("b"), removed=("c",)))
    assert counts(log) == {"a": 7, "b": 1}


def test_heartbeats_of_another_generation_or_incarnation_do_not_count() -> None:
    log = desk("a", "b")
    run(log, 60, {"a": 0.05, "b": 0.5}, generation=7)
    assert len(log.events(ShardsPlanned)) == 1


@pytest.mark.parametrize(
    ("slots", "seconds", "expected"),
    [
        (8, (1.0, 1.0), (4, 4)),
        (8, (1.0, 4.0), (7, 1)),
        (8, (1.0, 100.0), (7, 1)),
        (2, (1.0, 1.0, 1.0), (1, 1, 0)),
        (2, (5.0, 1.0, 1.0), (0, 1, 1)),
        (1, (1.0,), (1,)),
    ],
)
def test_shares(slots: int, seconds: tuple[float, ...], expected: tuple[int, ...]) -> None:
    assert shares(slots, seconds) == expected


@given(
    slots=st.integers(1, 10),
    seconds=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=4),
)
def test_shares_are_the_best_there_are(slots: int, seconds: list[float]) -> None:
    best = shares(slots, seconds)
    assert sum(best) == slots
    enough = slots >= len(seconds)
    least = 1 if enough else 0
    every = (c for c in itertools.product(range(slots + 1), repeat=len(seconds)) if sum(c) == slots and min(c) >= least)
    fastest = min(max(n * s for n, s in zip(c, seconds, strict=True)) for c in every)
    assert max(n * s for n, s in zip(best, seconds, strict=True)) == pytest.approx(fastest)


@given(slots=st.integers(1, 64), seconds=st.lists(st.one_of(st.none(), st.floats(0.001, 9.0)), min_size=1, max_size=12))
def test_a_split_by_speed_covers_all_slots(slots: int, seconds: list[float | None]) -> None:
    workers = [f"w{i}" for i in range(len(seconds))]
    ranges = by_speed(slots, workers, seconds)
    assert [r.worker for r in ranges] == workers
    assert ranges[0].first == 0
    assert ranges[-1].end == slots
    assert all(a.end == b.first for a, b in itertools.pairwise(ranges))


def test_prediction_and_gain() -> None:
    even, better = split(8, ["a", "b"]), split(8, ["a", "b"], [7, 1])
    seconds = {"a": 0.1, "b": 0.4}
    assert predicted(even, seconds) == pytest.approx(1.6)
    assert predicted(even, {"a": 0.1}) is None
    assert gain_of(even, better, seconds) == pytest.approx((1.6 - 0.7) / 1.6)
    assert gain_of(even, even, seconds) == 0.0


@given(st.lists(st.sampled_from((0.1, 0.2, 0.3, 0.7)), min_size=1, max_size=9), st.integers(0, 40))
def test_shares_are_handed_out_one_by_one_to_whoever_would_be_done_first(seconds: list[float], slots: int) -> None:
    """Written down as it is said: slow for a thousand workers, but plain."""
    counts = [1 if slots >= len(seconds) else 0] * len(seconds)
    while sum(counts) < slots:
        counts[min(range(len(counts)), key=lambda j: ((counts[j] + 1) * seconds[j], j))] += 1
    assert shares(slots, seconds) == tuple(counts)
