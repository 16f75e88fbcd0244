"""Who wants to leave leaves, also when nothing moves."""

from __future__ import annotations

import pytest

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
