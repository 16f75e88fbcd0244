"""The recovery benchmark's training script for reknit: trains on and on, notes every completed step."""

from __future__ import annotations

import sys

import torch
from diary import Diary
from workloads import BATCH, WORKLOADS

import reknit

SLOTS = 8


def main(folder: str) -> None:
    torch.set_num_threads(1)
    workload = WORKLOADS["mlp"]
    model, data = workload.model(), workload.data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        diary = Diary(folder, ring.id)
        for step in ring.steps(data, micro_batch=BATCH // SLOTS, slots=SLOTS, epochs=1_000_000):
            computed = 0
            for x, y in step:
                step.backward(workload.loss(model(x), y))
                computed += 1
            optimizer.step()
            diary.completed(step.index, step.generation, computed)


if __name__ == "__main__":
    main(sys.argv[1])
