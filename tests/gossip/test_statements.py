"""Which of two statements holds, what is told on and how often, how long a suspect has."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.gossip.health import Health
from reknit.gossip.preset import FAST, TRAIN
from reknit.gossip.rumour import Rumour, State, newer, said
from reknit.gossip.spread import Spread
from reknit.gossip.suspicion import suspect
from reknit.gossip.view import View

NAMES = ("a", "b", "c", "d")


def alive(name: str, epoch: int = 1, incarnation: int = 0) -> Rumour:
    return Rumour(name, epoch, incarnation, State.ALIVE, name, 1, name)


rumours = st.builds(
    lambda name, epoch, incarnation, state: Rumour(name, epoch, incarnation, state, f"{name}{epoch}", 1, "x"),
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from(list(State)),
)


@pytest.mark.parametrize(
    ("one", "than", "holds"),
    [
        (alive("a", 1, 0), alive("a", 1, 0), False),
        (alive("a", 1, 1), said(alive("a"), State.SUSPECT, "b"), True),
        (said(alive("a"), State.SUSPECT, "b"), alive("a"), True),
        (alive("a"), said(alive("a"), State.SUSPECT, "b"), False),
        (said(alive("a"), State.DEAD, "b"), said(alive("a"), State.SUSPECT, "b"), True),
        (alive("a", 2), said(alive("a", 1, 9), State.LEFT, "a"), True),
        (said(alive("a", 1, 9), State.LEFT, "a"), alive("a", 2), False),
    ],
)
def test_which_of_two_statements_holds(one: Rumour, than: Rumour, holds: bool) -> None:
    assert newer(one, than) is holds


@given(st.lists(rumours, max_size=12), st.randoms(use_true_random=False))
def test_views_that_heard_the_same_are_equal_in_whatever_order(heard: list[Rumour], chance: object) -> None:
    everybody = [alive(name) for name in NAMES]  # news of a stranger's end are no news, so let there be no stranger
    views = []
    for _ in range(3):
        view = View()
        for rumour in [*everybody, *heard, *heard]:
            view.put(rumour, 0.0)
        views.append(view)
        chance.shuffle(heard)  # type: ignore[attr-defined]
    assert len({view.digest for view in views}) == 1
    assert len({view.sums() for view in views}) == 1
    assert len({tuple(sorted(view.names())) for view in views}) == 1
    assert {view.size for view in views} == {len(list(views[0].names()))}


@given(st.lists(rumours, max_size=20))
def test_a_settled_view_says_what_it_said_before(heard: list[Rumour]) -> None:
    view = View()
    for rumour in heard:
        view.put(rumour, 0.0)
    before = sorted(view.names()), view.digest, view.sums(), {n: view.successors(n, 3) for n in view.names()}
    view.forget(1.0)
    view.settle(100.0, 5.0)
    assert before == (sorted(view.names()), view.digest, view.sums(), {n: view.successors(n, 3) for n in view.names()})
    for rumour in heard:  # what was said before is still known, unless it is of the forgotten
        held = view.get(rumour.name)
        assert held is None or held.rank >= rumour.rank or not held.present or rumour.present is False


def test_equal_views_share_one_roster() -> None:
    one, two = View(), View()
    for view in (one, two):
        for name in NAMES:
            view.put(alive(name), 0.0)
        view.settle(10.0, 5.0)
    assert one._roster is two._roster


def test_who_watches_whom_is_the_same_from_a_roster_and_from_news() -> None:
    names = [f"n{i}" for i in range(40)]
    news, settled = View(), View()
    for name in names:
        news.put(alive(name), 0.0)
        settled.put(alive(name), 0.0)
    settled.settle(10.0, 5.0)
    settled.put(said(alive("n7"), State.DEAD, "n1"), 20.0)
    news.put(said(alive("n7"), State.DEAD, "n1"), 20.0)
    for view in (news, settled):
        watched = {name: view.successors(name, 5) for name in view.names()}
        watchers = {name: view.predecessors(name, 5) for name in view.names()}
        assert all(name in watchers[other] for name, others in watched.items() for other in others)
        assert all(name in watched[other] for name, others in watchers.items() for other in others)
        assert all("n7" not in others for others in watched.values())
    assert {n: news.successors(n, 5) for n in news.names()} == {n: settled.successors(n, 5) for n in settled.names()}


def test_a_rumour_is_told_a_bounded_number_of_times() -> None:
    spread = Spread(6)
    spread.tell(alive("a"))
    told = [spread.take(1000, 100) for _ in range(100)]
    assert sum(map(len, told)) == 6 * 3  # log10(101) rounded up
    assert len(spread) == 0


def test_the_least_told_and_newest_goes_first() -> None:
    spread = Spread(6)
    spread.tell(alive("a"))
    assert spread.take(1000, 10) == (alive("a"),)
    spread.tell(alive("b"))
    spread.tell(alive("c"))
    assert spread.take(2 * alive("a").size, 10) == (alive("b"), alive("c"))
    assert spread.take(alive("a").size, 10) == (alive("c"),)


def test_a_newer_rumour_of_a_member_replaces_the_older() -> None:
    spread = Spread(6)
    spread.tell(alive("a"))
    spread.tell(said(alive("a"), State.SUSPECT, "b"))
    assert spread.take(1000, 10) == (said(alive("a"), State.SUSPECT, "b"),)


@given(st.lists(st.sampled_from(NAMES), max_size=30), st.integers(0, 400))
def test_never_more_than_fits(names: list[str], room: int) -> None:
    spread = Spread(2)
    for name in names:
        spread.tell(alive(name))
        taken = spread.take(room, 10, first=alive("first"))
        assert sum(r.size for r in taken) <= room
        assert len({r.name for r in taken}) == len(taken)


def test_a_suspect_has_less_time_the_more_suspect_it() -> None:
    suspicion = suspect(TRAIN, 1000, "a", now=10.0)
    times = [suspicion.deadline]
    for name in ("a", "b", "c", "d"):
        suspicion.confirmed(name)
        times.append(suspicion.deadline)
    least = 10.0 + 4 * 3 * 0.5
    assert times[0] == 10.0 + 6 * 4 * 3 * 0.5
    assert times[1] == times[0]  # the same one twice
    assert times == sorted(times, reverse=True)
    assert times[3] == least
    assert times[4] == least


def test_where_nobody_could_confirm_a_suspect_has_the_least_time() -> None:
    assert suspect(TRAIN, 3, "a", now=0.0).deadline == 4 * 0.5


def test_time_that_we_did_not_run_is_given_to_the_suspect() -> None:
    suspicion = suspect(FAST, 10, "a", now=0.0)
    before = suspicion.deadline
    suspicion.put_off(3.0)
    assert suspicion.deadline == before + 3.0


def test_health_is_bounded_and_stretches() -> None:
    health = Health(8)
    assert health.stretched(0.5) == 0.5
    for _ in range(20):
        health.worse()
    assert health.stretched(0.5) == 4.0
    for _ in itertools.repeat(None, 20):
        health.better()
    assert health.score == 0
