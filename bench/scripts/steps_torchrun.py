"""The recovery benchmark's training script for torchrun: DDP over gloo, saved every 20 steps, loaded at every start.

As torch's own tutorial on fault tolerance does it: the first rank saves (atomic rename), all load what there is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from diary import Diary
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate
from workloads import BATCH, WORKLOADS

SAVE_EVERY = 20


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    workload = WORKLOADS["mlp"]
    bare, data = workload.model(), workload.data()
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.01, momentum=0.9)
    saved = Path(folder) / "saved.pt"
    step = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(bare)
    diary = Diary(folder, f"rank{rank}")
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    while True:
        first = step * BATCH
        mine = range(first + rank, first + BATCH, size)
        x, y = default_collate([data[i % len(data)] for i in mine])  # type: ignore[arg-type]
        optimizer.zero_grad()
        workload.loss(model(x), y).backward()
        optimizer.step()
        diary.completed(step, attempt, 1)
        step += 1
        if rank == 0 and step % SAVE_EVERY == 0:
            new = saved.with_suffix(".new")
            torch.save({"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
            new.replace(saved)


if __name__ == "__main__":
    main(sys.argv[1])
