"""Leaving without slots: a spare, or a learner, has nothing to hand over and says so at the next step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reknit.core.events import WorkerLeaving
from support.rings import PretendWorker, Rings, wait_until


@pytest.fixture
def rings() -> Iterator[Rings]:
    made = Rings()
    yield made
    made.close()


def test_a_spare_that_leaves_is_idle_at_once(rings):
    for name in ("a", "b", "c"):
        rings.add(PretendWorker(name, slots=4, total=100_000))
    rings.world(["a", "b", "c"], c="spare")
    spare = rings.workers["c"]
    wait_until(lambda: spare.shared.step >= 2)
    assert not spare.computed
    with spare.shared.cv:
        spare.shared.leaving = "asked"
    wait_until(lambda: spare.shared.leaving == "idle")
    assert [e.idle for e in spare.outlet.events if isinstance(e, WorkerLeaving)] == [True]
    rings.world(["a", "b"])
    wait_until(lambda: spare.outcome.startswith("left"))
    after = rings.workers["a"].shared.step
    wait_until(lambda: rings.workers["a"].shared.step > after)
