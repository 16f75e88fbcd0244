"""A script that evaluates: in a step, after one, twice at one place, with few samples, and after the last step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES, MICRO = 50, 4
DATA = TensorDataset(torch.arange(float(SAMPLES)).unsqueeze(1))


def train(ring: Any, gate: Any, lies: str = "", slow: float = 0.0, stop: bool = False, **_: Any) -> dict[str, Any]:
    """Train a little; return what each evaluation found, bit for bit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    ring.track(model=model, optimizer=optimizer)
    found: dict[str, Any] = {}

    def measure(batch: Any) -> dict[str, Any]:
        (x,) = batch
        time.sleep(slow)
        loss = F.mse_loss(model(x), x)  # in training mode, with dropout and batch norm
        return {"loss": loss, "large": ((x > 30).sum(), len(x))} | ({"rare": x.max()} if float(x[0]) < 9 else {})

    def holding(place: str, at: int) -> Callable[[Any], dict[str, Any]]:
        """Measures, and can be held in so many micro-batches from the first."""
        calls = itertools.count(1)

        def held(batch: Any) -> dict[str, Any]:
            if next(calls) == at and gate.wanted(place):
                gate.hold(place)
            return measure(batch) | ({"lie": 1.0 if ring.id == lies else 0.0} if lies else {})

        return held

    def note(key: str, means: dict[str, float]) -> None:
        found[key] = {name: value.hex() for name, value in means.items()}

    for step in ring.steps(DATA, micro_batch=4, slots=4, epochs=2, seed=1):
        if step.index == 2:
            note("before 2", ring.evaluate(DATA, measure, micro_batch=MICRO))
        for number, (x,) in enumerate(step):
            gate.pass_by(step.index, number)
            step.backward(F.mse_loss(model(x), x))
        optimizer.step()
        if step.index == 3:
            note("middle", ring.evaluate(DATA, holding("middle", 3), micro_batch=MICRO, name="middle"))
            if gate.wanted("after middle"):
                gate.hold("after middle")
            note("again", ring.evaluate(DATA, measure, micro_batch=MICRO, name="middle"))
            if stop:
                break
            note("tiny", ring.evaluate(TensorDataset(torch.ones(2, 1)), measure, micro_batch=2, name="tiny\nüß/"))
    note("end", ring.evaluate(DATA, holding("end", 2), micro_batch=MICRO, name="end"))
    return found
