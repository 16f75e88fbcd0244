"""What the rebuild benchmark makes of a log and of notes, and that it fails when it must."""

from __future__ import annotations

import pytest
import rebuild
from rebuild import Change, change_of, figures, misses
from residue import Residue, leaks
from steplog import Done

from reknit.core.bus import Received
from reknit.core.events import Event, Member, RingLinked, WorldChanged


def received(time: float, event: Event) -> Received:
    return Received(event, "bench", 1, "id", "source", time, "")


def member(number: int) -> Member:
    return Member(worker=f"w{number}", incarnation=1, node="n", pid=number, address="")


def linked(number: int, *, link: float = 0.0, call: float = 0.0, generation: int = 3) -> Event:
    return RingLinked(
        worker=f"w{number}", incarnation=1, generation=generation, step=1, link_seconds=link, roll_call_seconds=call
    )


WORLD = received(10.0, WorldChanged(generation=3, run="r", status="running", members=(member(1), member(2))))
LOG = [
    WORLD,
    received(10.02, linked(1, link=0.004, call=0.010)),
    received(10.01, linked(9, generation=2)),
    received(10.03, linked(2, link=0.008, call=0.009)),
]
NOTES = [
    Done(4, 2, 9.9, 1, "w1", 1),
    Done(5, 3, 10.04, 1, "w1", 1),
    Done(6, 3, 10.50, 1, "w1", 1),
    Done(5, 3, 10.06, 2, "w2", 1),
]


def test_a_change_is_over_when_the_last_member_has_linked_and_the_last_old_one_has_committed():
    change = change_of(WORLD, LOG, NOTES, {1, 2})
    assert change is not None
    assert (change.size, change.planned) == (2, False)
    assert change.linked_s == pytest.approx(0.03)
    assert change.first_commit_s == pytest.approx(0.06)
    assert (change.link_s, change.roll_call_s) == (0.008, 0.010)


def test_a_joiner_must_link_but_its_first_step_is_its_own_business():
    assert change_of(WORLD, LOG, NOTES[:3], {1}).first_commit_s == pytest.approx(0.04)
    assert change_of(WORLD, LOG[:3], NOTES, {1}) is None


def test_a_change_that_an_old_member_has_not_committed_in_is_not_complete():
    assert change_of(WORLD, LOG, NOTES[:3], {1, 2}) is None


def document(size: int, took: float, how: str = "kill", planned: bool = False, growth: float = 0.0):
    change = Change(size, planned, took, took + 0.01, 0.001, 0.002)
    worker = {"fds_per_change": growth, "threads_per_change": 0.0, "rss_kib_per_change": 0.0}
    return {"how": how, "workers": {str(size): figures([change], size) | {"growth": {"worker": worker}, "rounds": 200}}}


def test_the_bar_is_a_line_over_the_size():
    assert rebuild.bound(16) - rebuild.bound(8) == pytest.approx(16 * rebuild.A_HOP)
    for size in (2, 16):
        assert misses(document(size, rebuild.bound(size))) == []
        (miss,) = misses(document(size, rebuild.bound(size) + 0.001))
        assert miss.startswith(f"{size} workers: linked in")


def test_without_a_change_it_has_shown_nothing():
    assert misses(document(4, 0.01, planned=True)) == [
        f"4 workers: linked in None s in the median, bar {round(rebuild.bound(4), 4)} s"
    ]
    assert misses(document(4, 9.0, how="scale", planned=True)) == []


def test_what_is_left_behind_counts_too():
    assert misses(document(4, 0.01, growth=0.5)) == ["4 workers: fds_per_change 0.5, limit 0.02"]


def test_the_cost_of_a_hop_is_the_roll_calls_over_its_hops():
    changes = [Change(4, False, 0.1, 0.1, 0.01, 0.016), Change(5, True, 0.1, 0.1, 0.01, 0.040)]
    found = figures(changes, 4)
    assert (found["unplanned"]["hop_ms"], found["planned"]["hop_ms"]) == (2.0, 4.0)
    assert (found["unplanned"]["sizes"], found["planned"]["sizes"]) == ([4], [5])


def test_a_leak_is_a_slope():
    residue = Residue([1, 2, 3, 4], [10, 11, 12, 13], [5, 5, 5, 5], [1000, 1000, 1000, 1000])
    growth = residue.growth()
    assert (growth["fds_per_change"], growth["threads_per_change"]) == (1.0, 0.0)
    assert leaks(growth, 4) == ["fds_per_change 1.0, limit 0.02"]
    assert leaks(growth, 2) == []
