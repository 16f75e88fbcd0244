"""The all-reduce benchmark: its verdict, and one short real run of it."""

from __future__ import annotations

import allreduce
from allreduce import Turn


def of(ring: float, gloo: float, others: float = 0.0) -> allreduce.Round:
    return {"ring": Turn(ring, others), "gloo": Turn(gloo, 0.0)}


def test_a_cell_takes_medians_over_the_quiet_rounds_if_there_are_two():
    found = allreduce.cell(2, 1000, [of(1, 2), of(2, 2), of(4, 2), of(99, 1, others=0.5)])
    assert (found["ring_ms"], found["ring_ms_min"], found["ratio"], found["quiet_rounds"]) == (2, 1, 1.0, 3)
    assert allreduce.cell(2, 1000, [of(1, 2), of(10, 1, others=0.5), of(10, 1, others=0.5)])["ratio"] == 0.1


def test_a_cell_below_the_limit_is_named():
    cells = [allreduce.cell(2, 10, [of(10, 9)]), allreduce.cell(4, 20, [of(10, 8.9)])]
    assert allreduce.misses({"cells": cells}) == ["0.89 x gloo with 4 workers and 20 floats, limit 0.9"]


def test_both_systems_sum_real_buffers():
    found = allreduce.measured([2], [100_000], count=1, seconds=0.01)
    (cell,) = found["cells"]
    assert cell["ring_ms"] > 0
    assert cell["gloo_ms"] > 0
    assert found["worst"] == cell
