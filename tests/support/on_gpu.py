"""What the tests of NCCL run in processes of their own: importable there by name."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

import reknit
from reknit.core.errors import ReknitError
from reknit.worker.ring.link import Link
from reknit.worker.transport import nccl
from reknit.worker.transport.watch import Watch


def train(transport: str, device: str) -> str:
    """A short run in a world of one on a GPU; a hash of the weights."""
    os.environ["REKNIT_TRANSPORT"] = transport
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        for step in ring.steps(data, micro_batch=4, slots=4, epochs=2, seed=0):
            for x, y in step:
                step.backward(torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)))
            optimizer.step()
    parts = [v.detach().cpu().numpy().tobytes() for v in model.state_dict().values()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _child(pipe: Connection, function: str, *args: Any) -> None:
    pipe.send(globals()[function](*args))


def in_a_process(function: str, *args: Any) -> Any:
    """CUDA, the environment and a session of its own for each run."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, function, *args), daemon=True)
    process.start()
    try:
        assert ours.poll(100), "no answer"
        return ours.recv()
    finally:
        process.kill()
        process.join()


def member(rank: int, pipe: Connection) -> None:
    """A member that does as it is told, on the GPU of its number."""
    nccl.prepare()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    server = socket.create_server(("127.0.0.1", 0))
    pipe.send(server.getsockname()[1])
    while True:
        do, order = pipe.recv()
        try:
            if do == "link":
                out = socket.create_connection(("127.0.0.1", order["port"]), timeout=30)
                server.settimeout(30)
                come, _ = server.accept()
                links = Link(come, "previous", 1, lambda: None), Link(out, "next", 1, lambda: None)
                watch = Watch(*links, lambda: False)
                answer: Any = True
            elif do == "meet":
                group = nccl.NcclGroup.meet(
                    order["rank"], order["size"], device, previous=links[0], following=links[1], watch=watch
                )
                answer = True
            elif do == "sum":
                tensor = torch.full((order["count"],), rank + 1, dtype=torch.int64, device=device)
                work = group.start(tensor, watch.ring)
                watch.until(lambda work=work: work.done, pace=group.pace)
                work.check()
                answer = int(tensor[0])
            else:
                began = time.monotonic()
                answer = group.closed(60), time.monotonic() - began
        except ReknitError as error:
            answer = str(error)
        pipe.send(answer)
