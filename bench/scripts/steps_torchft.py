"""The recovery benchmark's training script for torchft: one replica, a store and a manager of its own.

The gradients go through `manager.allreduce` as one flat tensor. torchft's own DDP wrapper is not used: with 0.2.0 the
survivors of a kill crash in it every now and then. Only steps that the manager commits are noted.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch
from diary import Diary
from torch.distributed import TCPStore
from torchft import Manager, Optimizer, ProcessGroupGloo
from workloads import BATCH, WORKLOADS

TIMEOUT = timedelta(seconds=60)
"""torchft's default."""


def main(folder: str, name: str, replicas: int) -> None:
    torch.set_num_threads(1)
    workload = WORKLOADS["mlp"]
    model, data = workload.model(), workload.data()
    plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": plain.state_dict()}

    def load(saved: dict[str, Any]) -> None:
        model.load_state_dict(saved["model"])
        plain.load_state_dict(saved["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        rank=0,
        world_size=1,
        replica_id=name,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    optimizer = Optimizer(manager, plain)
    diary = Diary(folder, name)
    draw = torch.Generator().manual_seed(os.getpid())
    while True:
        picked = torch.randint(len(data), (BATCH // replicas,), generator=draw)  # type: ignore[arg-type]
        x, y = data[picked]
        optimizer.zero_grad()
        workload.loss(model(x), y).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        manager.allreduce(flat).wait()
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))
        step = manager.current_step()
        optimizer.step()
        if manager.current_step() != step:
            # the quorum's number is what tells one world from the next, and has no public name
            diary.completed(step, manager._quorum_id, 1)  # noqa: SLF001


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
