"""Phi accrual by the listener's own clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.services.membership.phi import EVIDENCE, MOST, SIZE, SLOW, Window


def steady(interval: float = 0.25, beats: int = 40) -> Window:
    window = Window(0.0)
    for i in range(1, beats):
        window = window.heard(i * interval)
    return window


def first_at(window: Window, level: float) -> float:
    return next(t / 100 for t in range(2000) if window.phi(window.last + t / 100) >= level)


def test_a_steady_sender_is_slow_before_it_is_evidence_and_both_within_two_seconds() -> None:
    slow, evidence = first_at(steady(), SLOW), first_at(steady(), EVIDENCE)
    assert 0.75 < slow < evidence < 1.5


def test_one_lost_heartbeat_is_no_news() -> None:
    window = steady()
    assert window.phi(window.last + 0.5) < 1


def test_an_irregular_sender_gets_more_time() -> None:
    window = Window(0.0)
    at = 0.0
    for i in range(40):
        at += 0.1 if i % 2 else 0.9
        window = window.heard(at)
    assert first_at(window, EVIDENCE) > first_at(steady(), EVIDENCE) + 0.5


def test_one_long_gap_does_not_make_it_deaf_for_the_next_one() -> None:
    window = steady()
    window = window.heard(window.last + 60.0)
    for _ in range(4):
        window = window.heard(window.last + 0.25)
    assert first_at(window, EVIDENCE) < 3.0


def test_anchoring_forgives_the_silence_and_learns_nothing_from_it() -> None:
    window = steady()
    later = window.last + 100.0
    assert window.phi(later) == MOST
    assert window.anchored(later).phi(later) < 1
    assert window.anchored(later).intervals == window.intervals
    assert window.anchored(later).spoke == window.last, "an anchoring is no sign of life"


def test_a_sender_never_heard_again_is_judged_by_what_is_expected() -> None:
    assert first_at(Window(0.0, expected=1.0), EVIDENCE) > 2.0


def test_memory_is_bounded() -> None:
    assert len(steady(beats=500).intervals) == SIZE


@given(st.lists(st.floats(0.01, 2.0), max_size=50), st.floats(0, 30), st.floats(0, 30))
def test_phi_grows_with_silence_and_stays_finite(intervals: list[float], one: float, two: float) -> None:
    window = Window(0.0)
    for interval in intervals:
        window = window.heard(window.last + interval)
    low, high = sorted((one, two))
    assert 0.0 <= window.phi(window.last + low) <= window.phi(window.last + high) + 1e-9 <= MOST + 1e-9


@pytest.mark.parametrize("step", [-5.0, -0.001])
def test_a_clock_that_stands_still_is_no_error(step: float) -> None:
    window = steady()
    assert window.phi(window.last + step) == 0.0
    assert window.heard(window.last + step).intervals[-1] == 0.0
