"""Histories drawn from seeds, and what the exactness benchmark makes of outcomes."""

from __future__ import annotations

import json

import exact
from exact_net import MICRO_BATCH, SAMPLES, SLOTS
from histories import HISTORIES, QUICK, STEPS
from random_history import MOST, WEIGHTS, draw, history

MANY = range(300)


def test_a_seed_is_a_history():
    assert [draw(seed) for seed in MANY] == [draw(seed) for seed in MANY]
    assert len({draw(seed) for seed in MANY}) > 290


def test_thirty_seeds_hold_every_act():
    assert {act.what for seed in range(30) for act in draw(seed).acts} == set(WEIGHTS)
    assert any(act.hurry for seed in range(30) for act in draw(seed).acts)


def test_acts_are_possible_and_count_the_workers():
    for plan in map(draw, MANY):
        size = plan.workers
        for act in plan.acts:
            assert 1 <= act.workers <= MOST, plan
            if act.what in {"kill", "freeze"}:
                assert size > 1, plan
            if act.what == "scale":
                assert act.workers != size, plan
            else:
                assert act.workers - size == {"join": 1, "drain": -1}.get(act.what, 0), plan
            size = act.workers


def test_a_drawn_history_is_played_once_and_can_be_restored():
    drawn = history(4)
    assert drawn.tries == 1
    assert "--checkpoint-every-steps" in drawn.flags
    assert drawn.name.startswith("seed 4: ")


def test_an_epoch_has_the_steps_that_the_histories_count_with():
    assert -(-SAMPLES // (SLOTS * MICRO_BATCH)) == STEPS
    assert all(i < len(HISTORIES) for i in QUICK)


def test_hashes_are_counted_over_all_histories():
    same = exact.Outcome("a", {"w0/1": "h", "w1/2": "h"})
    other = exact.Outcome("b", {"w0/3": "i"})
    assert exact.document([same])["distinct_hashes"] == 1
    found = exact.document([same, other, exact.Outcome("c", {}, problem="no worker reached the end")])
    assert (found["histories"], found["distinct_hashes"], found["not_contained"]) == (3, 2, ["c"])
    assert len(exact.misses(found)) == 2
    assert exact.misses(exact.document([same])) == []


def test_workers_of_one_history_that_differ_are_two_hashes():
    found = exact.document([exact.Outcome("a", {"w0/1": "h", "w1/2": "i"})])
    assert exact.misses(found) == ["2 distinct hashes"]


def test_nothing_played_proves_nothing():
    assert exact.misses(exact.document([])) == ["0 distinct hashes"]


def test_seeds_that_fail_are_named_and_can_be_played_again():
    good = [exact.Outcome(f"seed {seed}", {"w/1": "h"}, seed=seed) for seed in (1, 2)]
    differs = exact.Outcome("seed 3", {"w/1": "i"}, seed=3)
    late = exact.Outcome("seed 4", {"w/1": "h"}, problem="not within 120 s", seed=4)
    found = exact.document([exact.Outcome("alone", {"w/1": "h"}), *good, differs, late])
    assert found["failing_seeds"] == [3, 4]
    assert exact.replay(3).endswith("--random 1 --seed 3")


def test_a_history_whose_event_fell_into_the_wrong_moment_is_played_again(monkeypatch):
    played = []

    def together(_history, _offspring, folder, _outcome):
        played.append(1)
        if len(played) < 2:
            raise exact.DidNotHappen("too late")
        (folder / "w.1.final").write_text(json.dumps({"worker": "w", "pid": 1, "sha256": "h"}))

    monkeypatch.setattr(exact, "_together", together)
    outcome = exact.play(HISTORIES[1])
    assert (outcome.tries, outcome.problem, outcome.distinct) == (2, "", {"h"})
    monkeypatch.setattr(exact, "_together", lambda *_: None)
    assert exact.play(history(1)).problem == "no worker reached the end"
