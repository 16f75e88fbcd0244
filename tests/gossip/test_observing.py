"""What an observer reports, and what the reports amount to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.gossip.observing import Observing
from reknit.gossip.preset import TRAIN
from reknit.gossip.tally import Count, count, observers

NAMES = [f"n{i}" for i in range(12)]
WATCHED = observers(NAMES, TRAIN)


def test_a_subject_is_silent_until_its_next_acknowledgement_however_late() -> None:
    seen = Observing(TRAIN)
    seen.watch(["a", "b", "c", "d", "e"], 0.0)
    for now in (0.5, 1.0, 1.5):
        for name in ("b", "c", "d", "e"):
            seen.heard(name, now)
        seen.look(now)
    assert seen.silent == {"a"}
    seen.heard("a", 1.6)
    assert seen.look(1.6)
    assert seen.silent == frozenset()


def test_a_new_subject_has_the_whole_time() -> None:
    seen = Observing(TRAIN)
    seen.watch(["a", "b"], 0.0)
    seen.watch(["a", "c"], 1.0)
    seen.heard("z", 1.5)
    seen.look(1.5)
    assert seen.silent == {"a"}


@pytest.mark.parametrize(
    ("subjects", "answering", "sick", "silent"),
    [
        (5, 5, False, 0),
        (5, 2, False, 3),  # three of five: not more than 60 %
        (5, 1, True, 0),
        (5, 0, True, 0),
        (2, 1, False, 1),
        (1, 0, True, 0),  # nobody at all is heard: it may be us
    ],
)
def test_who_hears_almost_nobody_says_nothing_of_others(subjects: int, answering: int, sick: bool, silent: int) -> None:
    names = [f"n{i}" for i in range(subjects)]
    seen = Observing(TRAIN)
    seen.watch(names, 0.0)
    for name in names[:answering]:
        seen.heard(name, 1.5)
    seen.look(1.5)
    assert (seen.sick, len(seen.silent)) == (sick, silent)


def test_a_lonely_subject_is_reported_by_who_hears_others() -> None:
    seen = Observing(TRAIN)
    seen.watch(["a"], 0.0)
    seen.heard("somebody else", 1.0)
    seen.look(1.5)
    assert seen.silent == {"a"}


def test_time_that_we_did_not_run_is_nobodys_silence() -> None:
    seen = Observing(TRAIN)
    seen.watch(["a", "b"], 0.0)
    seen.put_off(5.0)
    seen.look(5.1)
    assert not seen.silent
    assert seen.next_look(5.1) == 6.5


def reports(subject: str, number: int) -> dict[str, list[str]]:
    return {observer: [subject] for observer in WATCHED[subject][:number]}


def test_everybody_has_observers_and_nobody_watches_itself() -> None:
    assert all(2 <= len(set(who)) <= 5 and name not in who for name, who in WATCHED.items())


def test_high_is_out_of_reach_and_between_is_unstable() -> None:
    subject = next(name for name, who in WATCHED.items() if len(who) == 5)
    found = [count(reports(subject, n), WATCHED, TRAIN) for n in range(6)]
    assert [list(c.out) for c in found] == [[], [], [], [], [subject], [subject]]
    assert [subject in c.unstable for c in found] == [False, False, True, True, False, False]
    assert found[4].out[subject] == tuple(sorted(WATCHED[subject][:4]))


def test_an_observer_that_is_out_of_reach_itself_counts_as_one_that_agrees() -> None:
    subject = next(name for name, who in WATCHED.items() if len(who) == 5)
    dead = WATCHED[subject][:2]
    said: dict[str, list[str]] = {}
    for victim in (subject, *dead):
        for observer in WATCHED[victim]:
            if observer not in (subject, *dead):
                said.setdefault(observer, []).append(victim)
    assert set(count(said, WATCHED, TRAIN).out) == {subject, *dead}


def test_sick_observers_abstain_and_the_thresholds_shrink_with_the_others() -> None:
    subject = next(name for name, who in WATCHED.items() if len(who) == 5)
    who = WATCHED[subject]
    for sick, needed in ((0, 4), (1, 4), (2, 3), (3, 2), (4, 1)):
        said = {number: count(reports(subject, number), WATCHED, TRAIN, who[5 - sick :]) for number in range(6 - sick)}
        assert [number for number, found in said.items() if subject in found.out] == list(range(needed, 6 - sick))
    assert not count({}, WATCHED, TRAIN, who).out


def test_strangers_and_oneself_do_not_count() -> None:
    assert count({"n1": ["n1", "x"]}, WATCHED, TRAIN) == Count({}, frozenset())


def test_two_nodes_have_one_observer_each() -> None:
    watched = observers(["a", "b"], TRAIN)
    assert watched == {"a": ("b",), "b": ("a",)}
    assert set(count({"a": ["b"]}, watched, TRAIN).out) == {"b"}


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from(NAMES)), max_size=12))
def test_nobody_is_out_of_reach_whom_nobody_reports(said: dict[str, set[str]]) -> None:
    found = count(said, WATCHED, TRAIN)
    reported = {subject for subjects in said.values() for subject in subjects}
    assert set(found.out) | found.unstable <= reported
    assert not set(found.out) & found.unstable
