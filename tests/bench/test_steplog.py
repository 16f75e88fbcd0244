"""What follows from workers' notes about a kill; the notes are written out by hand."""

from __future__ import annotations

import json

import pytest
from steplog import (
    Done,
    Reader,
    active_at,
    excess_gap,
    longest_gap,
    mended_at,
    newest,
    parse,
    restarted_at,
    step_seconds,
    steps_lost,
    whole,
)

KILLED = 10.0


def notes(*said: tuple[int, int, int, float], slots: int = 3) -> list[Done]:
    """(pid, step, generation, time) each."""
    return [Done(step, generation, time, pid, f"w{pid}", slots) for pid, step, generation, time in said]


def test_recovered_is_when_the_last_survivor_has_a_step_of_a_newer_world():
    done = notes((1, 4, 2, 9.9), (2, 4, 2, 9.9), (3, 4, 2, 9.95), (1, 5, 3, 10.1), (1, 6, 3, 10.2))
    assert mended_at(done, {1, 2}, KILLED) is None
    assert mended_at([*done, *notes((2, 5, 3, 10.15))], {1, 2}, KILLED) == 10.15


def test_a_step_that_was_final_before_the_kill_is_no_recovery():
    done = notes((1, 4, 2, 9.9), (2, 4, 2, 9.9), (1, 5, 2, 10.01), (2, 5, 2, 10.02), (1, 6, 3, 10.3), (2, 6, 3, 10.4))
    assert mended_at(done, {1, 2}, KILLED) == 10.4


def test_without_survivors_nothing_recovers():
    assert mended_at(notes((1, 4, 2, 9.9)), set(), KILLED) is None


def test_a_restart_recovers_with_the_first_new_process():
    done = notes((1, 4, 0, 9.9), (1, 5, 0, 10.01), (7, 3, 1, 18.0), (8, 3, 1, 18.5))
    assert restarted_at(done, {1, 2, 3}, KILLED) == 18.0
    assert restarted_at(done[:2], {1, 2, 3}, KILLED) is None


def test_steps_that_a_restart_computes_again_are_lost():
    done = notes(*((1, step, 0, 9.0 + step / 100) for step in range(28)))
    again = notes(*((7, step, 1, 18.0 + step / 100) for step in range(20, 40)))
    assert steps_lost(done + again, {1}, KILLED, 30.0) == 8


def test_who_finishes_a_step_later_than_others_loses_nothing():
    done = notes((1, 5, 2, 9.99), (2, 4, 2, 9.9), (2, 5, 3, 10.1), (1, 6, 3, 10.2), (2, 6, 3, 10.2))
    assert steps_lost(done, {1, 2}, KILLED, 11.0) == 0


def test_who_computes_its_own_step_again_loses_it():
    done = notes((1, 5, 2, 9.99), (2, 5, 2, 9.99), (1, 5, 3, 10.1), (2, 5, 3, 10.1))
    assert steps_lost(done, {1, 2}, KILLED, 11.0) == 1


def test_a_learner_that_replays_computes_nothing():
    done = notes((1, 5, 2, 9.99)) + notes((9, 5, 3, 10.5), slots=0)
    assert steps_lost(done, {1}, KILLED, 11.0) == 0


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (notes((1, 9, 3, 12.0), (2, 9, 3, 12.0), (3, 9, 3, 12.0)), True),
        (notes((1, 9, 3, 12.0), (2, 9, 3, 12.0)), False),
        (notes((1, 9, 3, 12.0), (2, 9, 3, 12.0), (3, 9, 2, 12.0)), False),
        (notes((1, 9, 3, 12.0), (2, 9, 3, 12.0), (3, 9, 3, 10.0)), False),
        (notes((1, 9, 3, 12.0), (2, 9, 3, 12.0)) + notes((3, 9, 3, 12.0), slots=0), False),
        (notes((1, 9, 3, 12.0), (2, 9, 3, 12.0), (4, 9, 3, 12.0)), False),
    ],
    ids=["all at work", "one missing", "two worlds", "one stands", "one only follows", "one is dead"],
)
def test_whole(last, expected):
    assert whole(last, {1, 2, 3}, 3, since=11.0) is expected


def test_a_gap_belongs_to_the_window_in_which_it_ends():
    done = notes((1, 5, 2, 1.0), (1, 6, 2, 1.1), (1, 7, 2, 1.6), (1, 8, 2, 1.7))
    assert longest_gap(done, {1}, 1.3, 1.7) == pytest.approx(0.5)
    assert longest_gap(done, {1}, 1.6, 1.7) == pytest.approx(0.1)
    assert longest_gap(done, {1}, 1.0, 1.2) == pytest.approx(0.1)


def test_the_longest_gap_is_that_of_any_process_and_counts_while_it_is_open():
    done = notes((1, 5, 2, 1.0), (1, 6, 2, 1.1), (2, 5, 2, 1.0), (2, 6, 2, 1.2), (9, 5, 2, 1.0))
    assert longest_gap(done, {1, 2}, 0.9, 1.25) == pytest.approx(0.2)
    assert longest_gap(done, {1, 2}, 0.9, 2.0) == pytest.approx(0.9)
    assert longest_gap(done, set(), 0.9, 2.0) == 0.0


def test_a_gap_is_excessive_by_what_it_is_longer_than_a_step():
    done = notes(*((1, step, 2, step / 10) for step in range(20)), (1, 20, 2, 2.3))
    assert step_seconds(done, {1}, 0.0, 1.95) == pytest.approx(0.1)
    assert excess_gap(done, {1}, 1.95, 2.3, 0.1) == pytest.approx(0.3)
    assert excess_gap(done, {1}, 0.5, 1.5, 0.2) == 0.0


def test_a_normal_step_is_the_median_over_all_processes():
    done = notes((1, 0, 1, 0.0), (1, 1, 1, 1.0), (2, 0, 1, 0.0), (2, 1, 1, 2.0), (2, 2, 1, 5.0), (3, 0, 1, 0.0))
    assert step_seconds(done, {1, 2, 3}, 0.0, 9.0) == pytest.approx(2.0)
    assert step_seconds(done, {1, 2, 3}, 0.0, 0.5) is None


def test_a_joiner_is_active_when_it_computes():
    done = notes((7, 4, 3, 10.2), slots=0) + notes((7, 5, 3, 10.4), (8, 1, 1, 0.1))
    assert active_at(done, 7) == 10.4
    assert active_at(done[:1], 7) is None
    assert active_at(done, 7, after=99) is None


def test_a_reader_forgets_what_is_long_ago_but_nobodys_last_step(tmp_path):
    reader = Reader(tmp_path)
    reader.done = notes((1, 1, 1, 1.0), (1, 2, 1, 9.0), (2, 1, 1, 1.5))
    reader.forget(5.0)
    assert [(one.pid, one.time) for one in reader.done] == [(1, 9.0), (2, 1.5)]


def test_reader_goes_on_where_it_was_and_leaves_torn_lines(tmp_path):
    file = tmp_path / "w1.17.jsonl"
    line = json.dumps({"step": 1, "generation": 2, "time": 3.5, "pid": 17, "worker": "w1", "slots": 4})
    file.write_text(line + "\n" + line[:20])
    reader = Reader(tmp_path)
    assert reader.look() == [Done(1, 2, 3.5, 17, "w1", 4)]
    file.write_text(line + "\n" + line + "\n")
    assert len(reader.look()) == 2
    assert newest(reader.done)[17].step == 1


def test_parse_takes_no_foreign_line():
    assert parse("") is None
    assert parse('{"step": 1}') is None
