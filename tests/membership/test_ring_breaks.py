"""Links that break while both ends live."""

from __future__ import annotations

import itertools

import pytest

from support.town import Town


def ring_of(*workers: str) -> Town:
    town = Town(min_nodes=1, max_nodes=len(workers))
    town.begin(*workers)
    town.committed(3)
    town.run(2.0)
    return town


def test_a_broken_link_without_a_death_makes_a_new_generation_of_the_same_members() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("a-0", "b-0", error="ECONNRESET")
    town.broken("b-0", "a-0")
    took = town.until(lambda: len(town.worlds) == 2)
    assert 0.14 < took < 0.25
    assert town.members == ["a-0", "b-0", "c-0"]
    assert (town.world.removed, town.world.added) == ((), ())
    assert town.world.reason == ("the link a-0–b-0 broke (a-0 lost its next: ECONNRESET), all live; 3 workers go on")
    assert {e.source for e in town.world.evidence} == {"ring"}
    assert town.world.restarts == 0


def test_a_link_that_was_broken_because_bits_differ_waits_for_no_death() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("b-0", "a-0", error="diverged: step 4 was computed with weights 1 there, 2 here")
    town.broken("c-0", "b-0", error="closed by the peer")
    assert town.until(lambda: len(town.worlds) == 2) < 0.05
    assert town.members == ["a-0", "b-0", "c-0"]
    assert town.world.reason.startswith("b-0 broke the ring because bits differ (diverged: step 4 was computed with")
    town.broken("b-0", "a-0", error="diverged: again")
    assert town.until(lambda: len(town.worlds) == 3) < 0.1
    town.run(3.0)
    assert len(town.worlds) == 3


def test_the_reports_that_run_round_the_ring_are_one_break() -> None:
    names = [f"{n}-0" for n in "abcdef"]
    town = ring_of(*names)
    for i, name in enumerate(names):
        town.later(0.002 * i, lambda a=name, b=names[(i + 1) % 6]: town.broken(a, b))
        town.later(0.002 * i + 0.001, lambda a=name, b=names[i - 1]: town.broken(a, b))
    town.run(5.0)
    assert len(town.worlds) == 2


def test_a_death_behind_the_break_is_waited_for_and_there_is_only_one_new_world() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("a-0", "b-0")
    town.later(0.1, lambda: town.kill("b-0"))
    town.run(5.0)
    assert len(town.worlds) == 2
    assert town.members == ["a-0", "c-0"]


def test_the_peer_is_dialled_if_nothing_explains_the_break() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.kill("b-0", silent=True)
    town.broken("a-0", "b-0")
    town.broken("c-0", "b-0")
    assert town.until(lambda: "b-0" not in town.members) < 0.1
    assert [e.source for e in town.world.evidence] == ["refused", "ring", "ring"]


def test_a_peer_that_speaks_is_not_dialled() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("a-0", "b-0")
    town.broken("b-0", "a-0")
    town.run(5.0)
    assert not town.dials


@pytest.mark.parametrize("generation", [0, 99])
def test_reports_of_another_generation_are_ignored(generation: int) -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("a-0", "b-0", generation=generation)
    town.run(2.0)
    assert len(town.worlds) == 1


def test_a_late_report_of_the_generation_before_is_ignored() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.kill("b-0")
    town.run(1.0)
    town.broken("a-0", "b-0", generation=1)
    town.broken("c-0", "b-0", generation=1)
    town.run(2.0)
    assert len(town.worlds) == 2


def test_reports_of_strangers_are_ignored() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.register("x-0")
    town.broken("x-0", "a-0")
    town.broken("a-0", "nobody")
    town.broken("a-0", "a-0")
    town.run(0.05)
    assert len(town.worlds) == 1


def test_two_neighbours_are_one_kind() -> None:
    """A silent connection to the broker and reports from both neighbours are two kinds; the reports alone are one."""
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("a-0", "b-0")
    town.broken("c-0", "b-0")
    town.run(3.0)
    assert town.members == ["a-0", "b-0", "c-0"]


def test_ring_and_silence_are_two_kinds() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.bodies["b-0"].beats = False
    town.run(3.0)
    assert len(town.worlds) == 1
    town.broken("a-0", "b-0")
    assert town.until(lambda: "b-0" not in town.members) < 0.2


def test_repeated_breaks_of_one_link_are_routed_round_and_nobody_is_evicted() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0")
    for _ in range(2):
        town.committed(10)
        town.broken("b-0", "c-0")
        town.broken("c-0", "b-0")
        town.run(1.0)
    assert sorted(town.members) == ["a-0", "b-0", "c-0", "d-0"]
    ring = town.members + town.members[:1]
    assert {"b-0", "c-0"} not in [set(pair) for pair in itertools.pairwise(ring)]
    assert "b-0–c-0 broke repeatedly: they are no longer neighbours" in town.world.reason


def test_breaks_in_a_row_without_progress_slow_down() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    waits = []
    for _ in range(6):
        before = len(town.worlds)
        town.broken("a-0", "b-0")
        town.broken("b-0", "a-0")
        waits.append(town.until(lambda before=before: len(town.worlds) > before, 10.0))
    assert waits == sorted(waits)
    assert waits[0] < 0.3
    assert 2.9 < waits[-1] < 3.3
    town.committed(20)
    town.broken("a-0", "b-0")
    town.broken("b-0", "a-0")
    town.run(0.3)
    assert len(town.worlds) == 8


def test_a_joiner_that_never_links_is_found_by_its_death() -> None:
    town = ring_of("a-0", "b-0")
    town.register("c-0")
    town.run(1.0)
    town.broken("b-0", "c-0")
    town.kill("c-0")
    town.run(1.0)
    assert town.members == ["a-0", "b-0"]
