"""A planned world takes over at the end of a step: nothing is cut off, nothing is computed twice."""

from __future__ import annotations

import pytest

from support.rings import PretendWorker, Rings, wait_until

SLOTS, TOTAL = 6, 300


@pytest.fixture
def rings():
    r = Rings()
    yield r
    r.close()


@pytest.fixture(scope="module")
def calm():
    alone = Rings()
    alone.add(PretendWorker("x", slots=SLOTS, total=TOTAL))
    alone.world(["x"])
    yield alone.finish(["x"])[0]
    alone.close()


def add(rings: Rings, names: str, seed: int = 0) -> list[PretendWorker]:
    return [rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL, seed=seed)) for n in names]


def told(rings: Rings, kind: str) -> list[object]:
    return [e for w in rings.workers.values() for e in w.outlet.events if type(e).__name__ == kind]


def test_joins_cut_nothing_off(rings, calm):
    workers = add(rings, "abc")
    rings.world(list("abc"))
    wait_until(lambda: workers[0].shared.step > 5)
    workers += add(rings, "d", seed=5)
    rings.world(list("abcd"), planned=True)
    wait_until(lambda: all(w.shared.generation == 2 for w in workers))
    rings.world(list("abcd"), planned=True)
    assert set(rings.finish(list("abcd"))) == {calm}
    assert not told(rings, "RingBroken")
    done = [c for w in workers for c in w.computed]
    assert len(done) == len(set(done)) == SLOTS * TOTAL


def test_all_wait_for_the_slowest_to_hear_of_it(rings, calm):
    """Whoever has not heard of the planned world takes part in the old ring, and all go over together."""
    workers = add(rings, "abc")
    a, _, c = workers
    rings.world(list("abc"))
    wait_until(lambda: c.shared.step > 3)
    late, on_world = [], c.engine.on_world
    c.engine.on_world = late.append
    rings.world(list("abc"), planned=True)
    c.engine.on_world = on_world
    at = a.shared.step
    wait_until(lambda: a.shared.step > at + 10)
    assert {w.shared.generation for w in workers} == {1}
    c.engine.on_world(*late)
    wait_until(lambda: all(w.shared.generation == 2 for w in workers))
    assert set(rings.finish(list("abc"))) == {calm}
    assert not told(rings, "RingBroken")


def test_a_break_before_the_switch_goes_over_at_once(rings, calm):
    workers = add(rings, "abc")
    a, b, c = workers
    rings.world(list("abc"))
    gate = c.pause_at(5)
    wait_until(lambda: c.paused)
    rings.world(list("abc"), planned=True)
    assert {a.shared.upcoming.generation, b.shared.upcoming.generation} == {2}
    a.engine.neighbours.following.abort()
    wait_until(lambda: b.shared.generation == 2, what="who sees the break has gone over")
    gate.set()  # c computes what the step needs from it anyway, then it sees that its links are closed
    assert set(rings.finish(list("abc"))) == {calm}


def test_a_death_before_the_switch_overrides_it(rings, calm):
    workers = add(rings, "abc")
    a, b, c = workers
    rings.world(list("abc"))
    gate = c.pause_at(5)
    wait_until(lambda: c.paused)
    rings.world(list("bca"), planned=True)
    b.kill()
    rings.world(list("ca"))
    gate.set()
    assert set(rings.finish(list("ac"))) == {calm}
    assert a.shared.generation == c.shared.generation == 3


def test_who_leaves_goes_at_the_switch(rings, calm):
    workers = add(rings, "abc")
    b = workers[1]
    rings.world(list("abc"))
    wait_until(lambda: b.shared.step > 3)
    with b.shared.cv:
        b.shared.leaving = "asked"
    wait_until(lambda: b.shared.leaving == "idle")
    rings.world(list("ac"), planned=True)
    wait_until(lambda: b.outcome.startswith("left"))
    assert set(rings.finish(list("ac"))) == {calm}
    assert not told(rings, "RingBroken")
    done = [x for w in workers for x in w.computed]
    assert len(done) == len(set(done)) == SLOTS * TOTAL


def test_planned_at_the_end_of_the_run(rings, calm):
    """Planned for a ring that has finished its last step, or is about to: it follows or is not needed any more."""
    workers = add(rings, "ab")
    a, b = workers
    rings.world(list("ab"))
    gate = b.pause_at(TOTAL - 1)
    wait_until(lambda: b.paused and a.shared.step == TOTAL - 1)
    workers += add(rings, "c", seed=3)
    rings.world(list("abc"), planned=True)
    gate.set()
    assert set(rings.finish(list("abc"))) == {calm}
