"""A script that saves a file after each step, and can be held while it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from reknit.core.durable import DurableFile


def train(ring: Any, gate: Any, path: str, **_: Any) -> list[bool]:
    """Save the step's number after each step; return for each save whether this worker wrote."""
    model = torch.nn.Linear(2, 1)
    ring.track(model=model)
    wrote = []
    write = DurableFile.write

    def held(file: DurableFile, data: memoryview | bytes) -> None:
        write(file, data)
        if gate.wanted("writing") and file.written > 1000:
            gate.hold("writing")

    DurableFile.write = held  # type: ignore[method-assign]
    for step in ring.steps(TensorDataset(torch.ones(8, 2)), micro_batch=2, slots=2, epochs=2):
        for (x,) in step:
            step.backward(model(x).mean())
        wrote.append(ring.save({"step": step.index, "much": torch.full((5000,), float(step.index))}, Path(path)))
        gate.pass_by(step.index, -1)
    return wrote
