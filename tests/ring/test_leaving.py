"""Who wants to leave leaves, also when nothing moves."""

from __future__ import annotations

import threading

import pytest

from reknit.worker.copies import StateCopy
from support.rings import PretendWorker, Rings, wait_until


@pytest.fixture
def rings():
    r = Rings()
    yield r
    r.close()


def test_out_of_a_paused_world(rings):
    a, b = (rings.add(PretendWorker(n, slots=4, total=1000)) for n in "ab")
    rings.world(["a", "b"])
    wait_until(lambda: a.shared.step > 2 and b.shared.step > 2)
    rings.world(["a", "b"], status="paused")
    for worker in (a, b):
        with worker.shared.cv:
            worker.shared.leaving = "asked"
            worker.shared.cv.notify_all()
    wait_until(lambda: a.outcome.startswith("left") and b.outcome.startswith("left"))


def test_all_leave_together_with_the_same_bits(rings):
    workers = [rings.add(PretendWorker(n, slots=4, total=100_000)) for n in "abc"]
    rings.world(["a", "b", "c"])
    wait_until(lambda: all(w.shared.step > 2 for w in workers))
    for worker in workers:
        with worker.shared.cv:
            worker.shared.leaving = "stop"

    def over() -> bool:
        # as membership does: who is idle (planned out before the others asked) is not in the next world
        staying = [w.name for w in workers if w.shared.leaving != "idle"]
        if staying and len(staying) < len(workers[0].shared.world.members):
            rings.world(staying)
        return all(w.outcome for w in workers)

    try:
        wait_until(over, what="all have left")
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(w.story() for w in workers)])) from None
    stopped = [w for w in workers if w.outcome == "done"]
    assert stopped, "somebody must be the last, and stop the run with its state"
    assert len({w.digest for w in stopped}) == 1


@pytest.mark.parametrize("inside", [False, True], ids=["beside the ring", "in the ring"])
def test_the_last_one_with_the_state_stays_until_whoever_learns_has_it(rings, inside):
    total = 100_000
    a = rings.add(PretendWorker("a", slots=4, total=total))
    rings.world(["a"])
    wait_until(lambda: a.shared.step > 2)
    b = rings.add(PretendWorker("b", slots=4, total=total, seed=5))
    gate = threading.Event()
    take_in = b.shared.take_in

    def late(copy: StateCopy) -> bool:
        gate.wait(30.0)
        return take_in(copy)

    b.shared.take_in = late  # type: ignore[method-assign]
    if inside:
        rings.world(["a", "b"])
        wait_until(lambda: a.shared.generation == b.shared.generation == 2, what="both are in the ring")
    else:
        wait_until(lambda: a.engine.feeder.fed == ("b",), what="b is fed")
    with a.shared.cv:
        a.shared.leaving, then = "asked", a.shared.step
    wait_until(lambda: a.shared.step > then + 20, what="a goes on")
    assert (a.shared.leaving, a.outcome) == ("asked", "")
    gate.set()

    def caught_up() -> bool:
        with b.shared.cv:
            return b.shared.current and not b.shared.learning and b.shared.main_step == b.shared.step

    wait_until(caught_up, what="b has caught up")
    rings.world(["a", "b"], planned=True)
    wait_until(lambda: a.shared.leaving == "idle", what="b has the slots")
    rings.world(["b"], planned=True)
    wait_until(lambda: a.outcome.startswith("left"), what="a has left")
    then = b.shared.step
    wait_until(lambda: b.shared.step > then + 20 or b.outcome == "done", what="b goes on")


def test_out_of_a_paused_world_that_it_knows_already(rings):
    a, b = (rings.add(PretendWorker(n, slots=4, total=1000)) for n in "ab")
    rings.world(["a", "b"])
    wait_until(lambda: a.shared.step > 2 and b.shared.step > 2)
    rings.world(["a", "b"], status="paused")
    wait_until(lambda: all(w.engine.standing._looked == 2 for w in (a, b)), what="both have seen it")
    for worker in (a, b):
        with worker.shared.cv:
            worker.shared.leaving = "asked"
            worker.shared.cv.notify_all()
    wait_until(lambda: a.outcome.startswith("left") and b.outcome.startswith("left"))


def test_one_that_was_left_out_and_learns_again_leaves_at_once(rings):
    a, b = (rings.add(PretendWorker(n, slots=4, total=100_000)) for n in "ab")
    rings.world(["a", "b"])
    wait_until(lambda: a.shared.step > 2 and b.shared.step > 2)
    rings.world(["a"])
    wait_until(lambda: b.registered and b.engine.standing._following, what="b learns")
    with b.shared.cv:
        b.shared.leaving = "asked"
        b.shared.cv.notify_all()
    wait_until(lambda: b.outcome.startswith("left"), what="b has left")
    assert a.outcome == ""
