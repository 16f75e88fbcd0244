"""Statistics, and the verdicts that rest on them."""

from __future__ import annotations

import os

import machine
import pytest
import throughput
from figures import median_and_max, slope


def test_median_and_max():
    assert median_and_max([3.0, 1.0, 2.0]) == {"median": 2.0, "max": 3.0}
    assert median_and_max([]) == {"median": None, "max": None}


def test_slope():
    assert slope([1, 2, 3], [10, 12, 14]) == pytest.approx(2.0)
    assert slope([1], [10]) == 0.0
    assert slope([2, 2], [1, 9]) == 0.0
    with pytest.raises(ValueError, match="1 x for 2 y"):
        slope([1], [1, 2])


def metered(samples: float, step: float, cpu: float, others: float = 0.0) -> throughput.Metered:
    return {"samples_per_s": samples, "step_ms_median": step, "cpu_ms_a_step": cpu, "steps": 10, "others": others}


def test_throughput_takes_the_median_of_the_rounds_ratios():
    rounds = [
        {"reknit": metered(100, 10, 5), "ddp": metered(100, 10, 5)},
        {"reknit": metered(80, 12, 5), "ddp": metered(100, 10, 5)},
        {"reknit": metered(50, 20, 10), "ddp": metered(25, 40, 5)},
    ]
    found = throughput.compare(rounds)
    assert found["ratio"] == 1.0
    assert found["ratio_of_cpu"] == 1.0
    assert found["reknit"]["samples_per_s"] == 80


def test_throughput_counts_the_quiet_rounds_if_there_are_two():
    noisy = {"reknit": metered(10, 99, 5, others=0.5), "ddp": metered(100, 10, 5)}
    calm = {"reknit": metered(100, 10, 5), "ddp": metered(100, 10, 5)}
    assert throughput.compare([noisy, calm, noisy, calm])["ratio"] == 1.0
    assert throughput.compare([noisy, calm, noisy])["ratio"] == 0.1


def test_what_others_use_is_what_is_not_ours():
    before, after = machine.Busy(10.0, 100.0, {1: 5.0, 2: 50.0}), machine.Busy(12.0, 103.0, {1: 6.5, 3: 0.5})
    assert after.others_since(before) == pytest.approx(1.0 / (2 * (os.cpu_count() or 1)))


def test_throughput_misses_its_bar_with_any_model():
    models = {"mlp": {"ratio_vs_ddp": {"2": 1.0, "4": 1.2}}, "conv": {"ratio_vs_ddp": {"2": 0.99, "4": 1.1}}}
    assert throughput.lowest(models) == {"2": 0.99, "4": 1.1}
    assert throughput.misses({"models": models}) == ["conv: 0.99 x DDP with 2 workers, bar 1.0"]
    assert throughput.misses({"models": {"mlp": models["mlp"]}}) == []
    assert throughput.misses({"models": {}}) == ["nothing was measured"]
    assert throughput.misses({"models": {"mlp": {"ratio_vs_ddp": {"2": float("nan")}}}}) != []
