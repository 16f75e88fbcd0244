"""The engine on real sockets: same bits for every history of the world."""

from __future__ import annotations

import random

import pytest

from support.rings import PretendWorker, Rings, wait_until

SLOTS, TOTAL = 8, 12


@pytest.fixture
def rings():
    r = Rings()
    yield r
    r.close()


@pytest.fixture(scope="module")
def calm() -> str:
    r = Rings()
    try:
        r.add(PretendWorker("a", slots=SLOTS, total=TOTAL))
        r.world(["a"])
        return r.finish(["a"])[0]
    finally:
        r.close()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 10])
def test_same_bits_for_any_number_of_workers(rings, calm, count):
    names = [f"w{i}" for i in range(count)]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    rings.world(names)
    assert set(rings.finish(names)) == {calm}
    assert sorted(c for n in names for c in rings.workers[n].computed) == sorted(
        (t, s) for t in range(TOTAL) for s in range(SLOTS)
    )


def test_different_fresh_states_are_made_equal_before_the_first_step(rings, calm):
    names = ["a", "b", "c"]
    for i, n in enumerate(names):
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL, seed=i))
    rings.world(names)
    assert set(rings.finish(names)) == {calm}


def test_a_join_in_the_middle(rings, calm):
    for n in ("a", "b"):
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    gate = rings.workers["b"].pause_at(4, 5)
    rings.world(["a", "b"])
    wait_until(lambda: rings.workers["b"].paused)
    c = rings.add(PretendWorker("c", slots=SLOTS, total=TOTAL, seed=7))
    rings.world(["a", "b", "c"])
    gate.set()
    assert set(rings.finish(["a", "b", "c"])) == {calm}
    assert c.applied or c.shared.main_step == TOTAL


@pytest.mark.parametrize("seed", range(12))
def test_a_kill_at_any_moment_keeps_the_bits_and_the_survivors_work(rings, calm, seed):
    rng = random.Random(seed)
    names = ["a", "b", "c", "d"][: rng.choice([2, 3, 4])]
    victim = rng.choice(names)
    moment = (rng.randrange(1, TOTAL - 1), rng.randrange(SLOTS))
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    w = rings.workers[victim]
    w.pause_at(*moment)
    rings.world(names)
    wait_until(lambda: w.paused)
    w.kill()
    rest = [n for n in names if n != victim]
    rings.world(rest)
    assert set(rings.finish(rest)) == {calm}
    for n in rest:
        done = rings.workers[n].computed
        assert len(done) == len(set(done)), "a survivor computed a slot twice"
        assert rings.workers[n].applied == list(range(TOTAL))


def test_a_kill_while_the_ring_is_being_mended(rings, calm):
    names = ["a", "b", "c", "d"]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    rings.workers["b"].pause_at(4)
    rings.world(names)
    wait_until(lambda: rings.workers["b"].paused)
    rings.workers["b"].kill()
    rings.workers["c"].kill()
    rings.world(["a", "c", "d"])
    rings.world(["a", "d"])
    assert set(rings.finish(["a", "d"])) == {calm}


def test_only_one_survivor(rings, calm):
    names = ["a", "b", "c"]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    rings.workers["a"].pause_at(4)
    rings.world(names)
    wait_until(lambda: rings.workers["a"].paused)
    rings.workers["a"].kill()
    rings.workers["c"].kill()
    rings.world(["b"])
    assert rings.finish(["b"]) == [calm]


def test_an_evicted_worker_comes_back_and_learns(rings, calm):
    names = ["a", "b", "c"]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    gate = rings.workers["b"].pause_at(4, 3)
    rings.world(names)
    wait_until(lambda: rings.workers["b"].paused)
    rings.world(["a", "b"])
    wait_until(lambda: bool(rings.workers["c"].registered))
    rings.world(["a", "b", "c"])
    gate.set()
    assert set(rings.finish(names)) == {calm}


def test_a_drained_worker_leaves_at_a_step_boundary(rings, calm):
    names = ["a", "b", "c"]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    gate = rings.workers["a"].pause_at(4)
    rings.world(names)
    wait_until(lambda: rings.workers["a"].paused)
    later = rings.workers["c"].pause_at(6)
    gate.set()
    b = rings.workers["b"]
    with b.shared.cv:
        b.shared.leaving = "asked"
    wait_until(lambda: b.shared.leaving == "idle")
    rings.world(["a", "c"])
    later.set()
    wait_until(lambda: b.outcome.startswith("left"))
    assert set(rings.finish(["a", "c"])) == {calm}
