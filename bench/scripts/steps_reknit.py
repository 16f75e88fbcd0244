"""The training script of the recovery and join benchmarks for reknit: trains on and on, notes every completed step."""

from __future__ import annotations

import argparse
import time

import torch
from diary import Diary
from workloads import WORKLOADS

import reknit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--model", choices=WORKLOADS, default="mlp")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--adam", action="store_true", help="Adam instead of SGD with momentum")
    parser.add_argument("--elsewhere", type=float, default=0.0, help="seconds a micro-batch is computed elsewhere")
    args = parser.parse_args()
    torch.set_num_threads(1)
    workload = WORKLOADS[args.model]
    model, data = workload.model(), workload.data()
    optimizer = (
        torch.optim.Adam(model.parameters(), lr=1e-4)
        if args.adam
        else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    )
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        diary = Diary(args.folder, ring.id)
        for step in ring.steps(data, micro_batch=args.micro_batch, slots=args.slots, epochs=1_000_000):
            computed = 0
            for x, y in step:
                step.backward(workload.loss(model(x), y))
                time.sleep(args.elsewhere)
                computed += 1
            optimizer.step()
            diary.completed(step.index, step.generation, computed)


if __name__ == "__main__":
    main()
