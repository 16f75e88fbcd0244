"""A joiner is no member until it has caught up: it follows the run from outside, and the ring does not notice it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from support.rings import PretendWorker, Rings, wait_until

SLOTS, TOTAL = 6, 500


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


def caught_up(worker: PretendWorker) -> bool:
    shared = worker.shared
    with shared.cv:
        return shared.current and not shared.learning and shared.main_step == shared.step


def slowly(worker: PretendWorker, until: Callable[[], bool]) -> None:
    """The run does not get far, and surely not to its end, until something has happened."""

    def hold(step: int, _slot: int) -> None:
        time.sleep(0.002)
        while step > TOTAL - 20 and not until() and not worker.shared.closed:
            time.sleep(0.002)
        if until():
            worker.hold = lambda _step, _slot: None

    worker.hold = hold


def test_caught_up_first_then_a_member(rings, calm):
    members = add(rings, "abc")
    slowly(members[0], lambda: rings.generation == 2)
    rings.world(list("abc"))
    wait_until(lambda: members[0].shared.step > 5)
    (d,) = add(rings, "d", seed=5)
    wait_until(lambda: caught_up(d), what="d has caught up")
    assert d.shared.generation == 0
    assert {w.shared.generation for w in members} == {1}
    rings.world(list("abcd"), planned=True)
    wait_until(lambda: d.shared.generation == 2)
    assert set(rings.finish(list("abcd"))) == {calm}
    assert not told(rings, "RingBroken")
    assert not any("learns" in e.decision for e in told(rings, "RingLinked"))
    done = [c for w in rings.workers.values() for c in w.computed]
    assert len(done) == len(set(done)) == SLOTS * TOTAL


def test_a_candidate_that_dies_or_freezes_is_not_felt(rings, calm):
    members = add(rings, "ab")
    gone: list[str] = []
    slowly(members[0], lambda: bool(gone))
    rings.world(list("ab"))
    wait_until(lambda: members[0].shared.step > 5)
    dead, frozen = add(rings, "de", seed=5)
    frozen.shared.take_in = lambda copy: time.sleep(3600)  # its thread never comes back
    wait_until(lambda: dead.shared.current, what="d has received a state")
    dead.kill()
    gone.append("dead")
    assert set(rings.finish(list("ab"))) == {calm}
    assert not told(rings, "RingBroken")
    assert {w.shared.generation for w in members} == {1}
    frozen.outcome = "killed"  # not to be closed in good order: its thread sleeps


def test_the_ring_breaks_while_a_candidate_learns(rings, calm):
    members = add(rings, "abc")
    slowly(members[2], lambda: rings.generation == 3)
    slowly(members[0], lambda: rings.generation == 3)
    rings.world(list("abc"))
    wait_until(lambda: members[0].shared.step > 5)
    (d,) = add(rings, "d", seed=5)
    wait_until(lambda: d.engine.standing._candidate.feeder != "", what="d is fed")
    feeder = d.engine.standing._candidate.feeder
    rest = [n for n in "abc" if n != feeder]
    rings.workers[feeder].kill()
    rings.world(rest)
    wait_until(lambda: caught_up(d) and d.shared.step > rings.workers[rest[0]].shared.step - 3, what="d caught up")
    rings.world([*rest, "d"], planned=True)
    assert set(rings.finish([*rest, "d"])) == {calm}


def test_a_world_takes_a_candidate_in_before_it_has_caught_up(rings, calm):
    """As when everybody else has been lost but one, or the run is paused: it learns inside the ring then."""
    members = add(rings, "ab")
    slowly(members[0], lambda: rings.generation == 2)
    rings.world(list("ab"))
    wait_until(lambda: members[0].shared.step > 5)
    add(rings, "d", seed=5)
    rings.world(list("abd"))
    assert set(rings.finish(list("abd"))) == {calm}


def test_who_was_left_out_goes_on_after_its_last_result_without_a_copy(rings, calm):
    a, b, _c = add(rings, "abc")
    slowly(a, lambda: rings.generation == 3)
    rings.world(list("abc"))
    wait_until(lambda: a.shared.step > 5)
    gate = b.pause_at(0)
    wait_until(lambda: b.paused)
    rings.world(list("ac"))
    gate.set()
    wait_until(lambda: b.registered, what="b registers anew")
    wait_until(lambda: caught_up(b) and b.shared.step >= a.shared.step - 1, what="b has caught up")
    rings.world(list("abc"), planned=True)
    assert set(rings.finish(list("abc"))) == {calm}
    assert b.shared.generation == 3


def test_the_last_member_dies_with_candidates_at_its_side(rings, calm):
    """Whoever has followed to the end has the state: nothing is lost."""
    (a,) = add(rings, "a")
    slowly(a, lambda: rings.generation == 2)
    rings.world(["a"])
    wait_until(lambda: a.shared.step > 5)
    d, e = add(rings, "de", seed=5)
    wait_until(lambda: caught_up(d) and caught_up(e), what="both have caught up")
    a.kill()
    rings.world(list("de"))
    assert set(rings.finish(list("de"))) == {calm}
