"""NCCL, wherever a GPU is; without one these tests say that they did not run, and why.

What does not need a GPU is tested elsewhere: the arithmetic (test_device_point), the meeting as NCCL uses it
(test_making), the transport around it over gloo (test_rings, test_training), the errors (test_choice).
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import pytest
import torch

from support import on_gpu

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
one_gpu = pytest.mark.skipif(GPUS < 1, reason="no GPU here: NCCL cannot run")
two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"NCCL needs one GPU a member, and here are {GPUS}")


@one_gpu
def test_a_world_of_one_has_the_bits_of_sums_on_the_host():
    assert on_gpu.in_a_process("train", "nccl", "cuda:0") == on_gpu.in_a_process("train", "gloo", "cuda:0")


@one_gpu
def test_flat_buffers_are_page_locked():
    from reknit.worker.ring.pieces import Section, Shape
    from reknit.worker.transport.choice import Choice

    shape = Shape((Section("f4", 0, 64),))
    choice = Choice("tcp", shape, [Section("f4", 0, 64)], 2, [torch.zeros(1, device="cuda:0")])
    assert torch.from_numpy(choice.shape.empty()).is_pinned()


@two_gpus
def test_sums_a_death_in_the_middle_and_a_new_communicator_in_the_survivor():
    size = min(GPUS, 3)
    context = multiprocessing.get_context("spawn")
    pipes, processes, ports = [], [], []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=on_gpu.member, args=(rank, theirs), daemon=True)
            process.start()
            pipes.append(ours)
            processes.append(process)
        ports = [pipe.recv() for pipe in pipes]

        def told(do: str, who: list[int], **order: Any) -> list[Any]:
            for place, rank in enumerate(who):
                more = {"rank": place, "size": len(who), "port": ports[who[(place + 1) % len(who)]]}
                pipes[rank].send((do, order | more))
            return [pipes[rank].recv() for rank in who]

        everybody = list(range(size))
        told("link", everybody)
        assert told("meet", everybody) == [True] * size
        assert told("sum", everybody, count=1 << 20) == [size * (size + 1) // 2] * size
        for rank in everybody[1:]:
            pipes[rank].send(("sum", {"count": 1 << 20}))
        time.sleep(0.5)
        processes[0].kill()
        rest = everybody[1:]
        answers = [pipes[rank].recv() for rank in rest]
        assert all(isinstance(a, str) for a in answers), answers
        assert all(gone for gone, _ in told("close", rest))
        if len(rest) > 1:
            told("link", rest)
            assert told("meet", rest) == [True] * len(rest)
            assert told("sum", rest, count=1000) == [sum(r + 1 for r in rest)] * len(rest)
    finally:
        for process in processes:
            process.kill()
            process.join()
