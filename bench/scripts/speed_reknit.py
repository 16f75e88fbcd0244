"""The throughput benchmark's training script for reknit."""

from __future__ import annotations

import argparse

import torch
from meter import Meter
from workloads import WORKLOADS

import reknit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    workload = WORKLOADS[args.model]
    model, data = workload.model(), workload.data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        meter = Meter(args.folder, ring.id, args.warm, args.seconds)
        for step in ring.steps(data, micro_batch=workload.batch // args.slots, slots=args.slots, epochs=1_000_000):
            for x, y in step:
                step.backward(workload.loss(model(x), y))
            optimizer.step()
            meter.completed(workload.batch)


if __name__ == "__main__":
    main()
