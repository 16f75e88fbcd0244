"""The throughput benchmark's training script for DDP over gloo: a static group, gradients accumulated without sync.

Model, data, micro-batches and global batch are as with reknit: each of W workers computes slots / W micro-batches a
step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from meter import Meter
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from workloads import WORKLOADS


def endless(data: Dataset[tuple[Tensor, ...]], micro_batch: int, rank: int, size: int) -> Iterator[list[Tensor]]:
    """Yield this rank's micro-batches, epoch after epoch, shuffled."""
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, size, rank, seed=0)
    loader = DataLoader(data, micro_batch, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def work(rank: int, args: argparse.Namespace) -> None:
    """Train as one rank until killed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{args.folder}/store", rank=rank, world_size=args.workers)
    workload = WORKLOADS[args.model]
    bare = workload.model()
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.01, momentum=0.9)
    model = DistributedDataParallel(bare)
    batches = endless(workload.data(), workload.batch // args.slots, rank, args.workers)
    meter = Meter(args.folder, f"rank{rank}", args.warm, args.seconds)
    each = args.slots // args.workers
    while True:
        optimizer.zero_grad()
        for number in range(each):
            last = number == each - 1
            with contextlib.nullcontext() if last else model.no_sync():
                x, y = next(batches)
                (workload.loss(model(x), y) / each).backward()
        optimizer.step()
        meter.completed(workload.batch)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(  # type: ignore[attr-defined,no-untyped-call]
        work, args=(args,), nprocs=args.workers
    )


if __name__ == "__main__":
    main()
