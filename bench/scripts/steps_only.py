"""Trains a tiny model on and on: the rebuilds benchmark's script, where only changes of the world matter."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import reknit


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(4096, 32, generator=draw), torch.randn(4096, 8, generator=draw))
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        for step in ring.steps(data, micro_batch=8, slots=8, epochs=1_000_000):
            for x, y in step:
                step.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            time.sleep(0.01)  # leave the machine to what is measured


if __name__ == "__main__":
    main()
