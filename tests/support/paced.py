"""A training script that takes its time until it is told to hurry: what a newcomer needs to catch up meanwhile."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from support.cases import sha


def train(ring: Any, gate: Any, **_: Any) -> dict[str, Any]:
    """A hash of model and optimizer after each step; `Gate.wanted("hurry")` ends the slow part."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 6), torch.randn(96, 1))
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ring.track(model=model, optimizer=optimizer)
    trail = {}
    for step in ring.steps(data, micro_batch=4, slots=6, epochs=30, seed=1):
        for x, y in step:
            step.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        trail[str(step.index)] = sha([model.state_dict(), optimizer.state_dict()])
        if ring.id != "solo" and not gate.wanted("hurry"):
            time.sleep(0.25)
    return {"trail": trail, "final": trail[str(step.index)]}
