"""Trains a tiny model on and on and notes each step: the rebuild benchmark's script, where only the ring matters."""

from __future__ import annotations

import sys
import time

import torch
from diary import Diary
from torch import nn
from torch.utils.data import TensorDataset

import reknit

SLOTS = 32


def main(folder: str, pause: float = 0.02) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(4096, 32, generator=draw), torch.randn(4096, 8, generator=draw))
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        diary = Diary(folder, ring.id)
        for step in ring.steps(data, micro_batch=4, slots=SLOTS, epochs=1_000_000):
            computed = 0
            for x, y in step:
                step.backward(nn.functional.mse_loss(model(x), y))
                computed += 1
            optimizer.step()
            diary.completed(step.index, step.generation, computed)
            time.sleep(pause)  # leave the machine to what is measured


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
