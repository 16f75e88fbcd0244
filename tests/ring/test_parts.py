"""Which bytes, at which step, from whom."""

from __future__ import annotations

import itertools
import random

import pytest

from reknit.worker.copies import CopyWanted, StateCopy, cover
from reknit.worker.parts import AHEAD, Where, meet, span, spread


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 640, 6400, 300_000_000 // 64 * 64])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_parts_are_the_whole_without_overlap_and_cut_at_cache_lines(size, parts):
    spans = [span(size, part, parts) for part in range(parts)]
    assert spans[0][0] == 0
    assert spans[-1][1] == size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    assert all(first % 64 == 0 or first == size for first, _ in spans)
    lengths = [end - first for first, end in spans]
    assert max(lengths) - min(lengths) <= 64 + 64  # the last line may be a short one


def test_teachers_meet_ahead_of_the_newest_far_enough_for_the_question_to_arrive():
    step, chosen = meet([Where(100, 0.001, True), Where(103, 0.001, True)], 0, 0)
    assert step == 103 + AHEAD / 0.001
    assert chosen == [0, 1]


def test_each_refusal_doubles_the_margin():
    places = [Where(10, 0.001, True), Where(10, 0.001, True)]
    margins = [meet(places, 0, refusals)[0] - 10 for refusals in range(5)]
    assert margins == [50, 100, 200, 400, 800]


def test_long_steps_are_met_in_the_step_that_runs_unless_that_came_too_late_once():
    places = [Where(7, 3.0, True), Where(7, 3.0, True)]
    assert meet(places, 0, 0)[0] == 7
    assert meet(places, 0, 1)[0] == 8


def test_nothing_is_copied_before_the_first_result_that_is_queued():
    assert meet([Where(7, 3.0, True)], 12, 0)[0] == 12


def test_a_second_learner_joins_the_step_of_the_first():
    places = [Where(100, 0.001, True, planned=131), Where(101, 0.001, True)]
    assert meet(places, 0, 0)[0] == 131
    assert meet(places, 131, 0)[0] == 131
    assert meet(places, 132, 0)[0] > 131  # unless it lies before the first result that is queued
    assert meet(places, 0, 1)[0] > 150  # or was too near


def test_where_nothing_moves_those_at_the_newest_step_are_asked_for_it():
    places = [Where(7, 3.0, False), Where(8, 3.0, False), Where(8, 0.1, False)]
    assert meet(places, 0, 3) == (8, [1, 2])


def test_a_step_that_was_not_reached_is_followed_by_the_newest_one_and_then_by_who_is_there():
    places = [Where(7, 0.001, True), Where(8, 0.001, True)]
    assert meet(places, 0, 0)[0] > 8
    assert meet(places, 0, 0, 1) == (8, [0, 1])
    assert meet(places, 0, 0, 2) == (8, [1])


def test_learners_of_different_names_begin_with_different_members():
    members = ["a", "b", "c", "d"]
    firsts = {spread(members, f"w{n}")[0] for n in range(40)}
    assert firsts == set(members)
    assert spread(members, "w1", 1)[0] == spread(members, "w1")[1]
    assert sorted(spread(members, "w1")) == members
    assert spread([], "w1") == []


def test_one_copy_covers_all_that_is_wanted_of_its_step():
    rng = random.Random(3)
    raw = bytes(rng.randrange(256) for _ in range(64 * 30))
    wanted = [CopyWanted(5, True, 1, 4), CopyWanted(5, True, 2, 4), CopyWanted(5, True, 2, 3)]
    first, end = cover(wanted, len(raw))
    copy = StateCopy(5, 0, b"", memoryview(raw)[first:end], b"", first=first, size=len(raw))
    for w in wanted:
        assert w.fits(copy)
        a, b = span(len(raw), w.part, w.parts)
        assert bytes(copy.view(w.part, w.parts)) == raw[a:b]
    assert not CopyWanted(5, True, 0, 4).fits(copy)
    assert not CopyWanted(6, True, 1, 4).fits(copy)
    assert not CopyWanted(6, False, 1, 4).fits(copy)
    assert CopyWanted(4, False, 1, 4).fits(copy)
    assert cover([], 100) == (0, 100)
