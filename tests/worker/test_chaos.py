"""Faults on purpose: one bit, where it was asked for, when, and only where that is allowed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from reknit.core.events import ChaosAsked
from reknit.worker.chaos import Chaos, flip
from reknit.worker.tracked import Tracked
from support.rings import wait_until


class Bench:
    """A model, its optimizer after one step, and what spoils them."""

    def __init__(self, *, allowed: bool = True) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(5, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model(torch.randn(4, 5)).square().sum().backward()
        self.optimizer.step()
        self.chaos = Chaos("w", Tracked(model=self.model, optimizer=self.optimizer), allowed=allowed)
        self.before = self.bits()

    def bits(self) -> dict[str, bytes]:
        held = dict(self.model.named_parameters())
        for name, parameter in self.model.named_parameters():
            held |= {f"{name}.{k}": v for k, v in self.optimizer.state[parameter].items()}
        return {name: tensor.detach().numpy().tobytes() for name, tensor in held.items()}

    def changed(self) -> dict[str, int]:
        """Name -> how many bits are not as before."""
        count = {}
        for name, now in self.bits().items():
            bits = np.unpackbits(np.frombuffer(now, np.uint8) ^ np.frombuffer(self.before[name], np.uint8)).sum()
            if bits:
                count[name] = int(bits)
        return count

    def ask(self, worker: str = "w", **what: Any) -> None:
        self.chaos.hear(ChaosAsked(worker=worker, fault="flip-bit", **what))


def test_one_bit_of_the_weights_at_once() -> None:
    bench = Bench()
    bench.ask(bit=32 * 15 + 3)  # behind the 15 weights: the first bias
    assert bench.changed() == {"bias": 1}
    bench.ask(bit=32 * 15 + 3)
    assert bench.changed() == {}
    bench.ask()
    assert sum(bench.changed().values()) == 1
    assert len(bench.chaos.done) == 3


def test_a_bit_of_the_moments_never_touches_weights_or_step_counts() -> None:
    for _ in range(20):
        bench = Bench()
        bench.ask(target="moments")
        ((name, bits),) = bench.changed().items()
        assert bits == 1
        assert name.endswith(("exp_avg", "exp_avg_sq"))


def test_others_and_the_forbidden_are_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    bench = Bench()
    bench.ask("v")
    assert bench.changed() == {}
    bench = Bench(allowed=False)
    bench.ask()
    bench.ask(target="result")
    bench.ask(at_step=0)
    bench.chaos.at(5)
    result = np.zeros(16, np.uint8)
    bench.chaos.before_apply(5, result)
    assert not result.any()
    assert bench.changed() == {}
    assert "refused: this job was not submitted with --allow-chaos" in capfd.readouterr().err


def test_what_waits_for_a_step_comes_in_it_or_later() -> None:
    bench = Bench()
    bench.ask(at_step=7)
    bench.chaos.at(6)
    bench.chaos.at(7)
    wait_until(bench.changed, what="the bit flips")
    bench.chaos.at(8)
    assert len(bench.chaos.done) == 1


def test_the_next_result_only() -> None:
    bench = Bench()
    result = np.zeros(16, np.uint8)
    bench.ask(target="result", bit=9, at_step=3)
    bench.chaos.before_apply(2, result)
    assert not result.any()
    bench.chaos.before_apply(4, result)
    assert result.tolist() == [0, 2] + [0] * 14
    bench.chaos.before_apply(5, result)
    assert result.tolist() == [0, 2] + [0] * 14


def test_the_scripts_random_numbers_stay_its_own() -> None:
    bench = Bench()
    random.seed(3)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for target in ("weights", "moments"):
        bench.ask(target=target)
    flip(memoryview(bytearray(4)))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states


def test_a_model_without_moments_has_nothing_to_flip(capfd: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(2, 2)
    chaos = Chaos("w", Tracked(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)), allowed=True)
    chaos.hear(ChaosAsked(worker="w", fault="flip-bit", target="moments"))
    assert chaos.done == []
    assert "nothing to flip" in capfd.readouterr().err
