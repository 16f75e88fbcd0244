"""The overlap benchmark's verdict."""

from __future__ import annotations

import pytest
from overlap import Setting, Turn, cell, misses

SLOW, LOOPBACK = Setting("100mbit", 2, 1.0, 1.0), Setting("", 4, 1.0, 1.0)


def test_a_gain_is_the_median_of_the_rounds_ratios_over_the_quiet_ones_if_there_are_two():
    rounds = [
        {"off": Turn(100, 0.0), "on": Turn(80, 0.0)},
        {"off": Turn(100, 0.0), "on": Turn(50, 0.0)},
        {"off": Turn(100, 0.5), "on": Turn(10, 0.0)},
    ]
    found = cell(SLOW, rounds)
    assert (found["gain"], found["quiet_rounds"], found["step_ms"]) == (1.625, 2, {"off": 100, "on": 65})
    assert cell(SLOW, rounds[1:])["gain"] == 6.0


@pytest.mark.parametrize(
    ("setting", "other", "took", "missed"),
    [
        (SLOW, "on", 90.0, 0),
        (SLOW, "on", 92.0, 1),
        (LOOPBACK, "auto", 102.0, 0),
        (LOOPBACK, "auto", 103.0, 1),
    ],
)
def test_it_must_pay_on_slow_links_and_cost_nothing_on_the_loopback(setting, other, took, missed):
    found = {"cells": [cell(setting, [{"off": Turn(100, 0.0), other: Turn(took, 0.0)}])]}
    assert len(misses(found)) == missed
