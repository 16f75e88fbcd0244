"""The exactness benchmark's training script: dropout and batch norm, Adam, an uneven last batch.

At its end each worker writes the sha256 of its final state into a file. While the file `go` is missing, each
micro-batch takes a while longer, in the last epoch much longer, so that there is time for something to happen in
mid-run; that changes no bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import reknit

SAMPLES = 997
"""With 6 slots of 8 samples: 20 full steps an epoch, then one of 37 samples."""
SLOTS = 6
MICRO_BATCH = 8
LAST = 0.25
"""Seconds longer a micro-batch of the last epoch, until `go` is there."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(8 * 16, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(64, 10),
    )


def data() -> TensorDataset:
    """Random images (SAMPLES, 1, 8, 8) whose class can be learned from them."""
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(SAMPLES, 1, 8, 8, generator=draw)
    return TensorDataset(images, (images.flatten(1) @ torch.randn(64, 10, generator=draw)).argmax(1))


def sha256(*states: dict[str, Any]) -> str:
    """Hash everything in some state dicts, nested ones too, in order."""
    hasher = hashlib.sha256()

    def take(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            hasher.update(f"{name}{value.dtype}{tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                take(f"{name}/{key}", value[key])
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                take(f"{name}/{i}", item)
        else:
            hasher.update(f"{name}={value!r}".encode())

    for i, state in enumerate(states):
        take(str(i), state)
    return hasher.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds longer a micro-batch, until `go` is there")
    parser.add_argument("--die", default="", help="WORKER:STEP: SIGKILL itself in the middle of that step, once")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder, go = args.folder, args.folder / "go"
    doomed, _, last_step = args.die.partition(":")
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        for step in ring.steps(data(), micro_batch=MICRO_BATCH, slots=SLOTS, epochs=args.epochs, seed=7):
            for number, (x, y) in enumerate(step):
                if ring.id == doomed and step.index == int(last_step) and number == 1:
                    _die_once(folder / "died")
                if args.pace and not go.exists():
                    time.sleep(LAST if step.epoch == args.epochs - 1 else args.pace)
                step.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
        result = {"worker": ring.id, "pid": os.getpid(), "sha256": sha256(model.state_dict(), optimizer.state_dict())}
    new = folder / f"{ring.id}.{os.getpid()}.new"
    new.write_text(json.dumps(result))
    new.rename(new.with_suffix(".final"))


def _die_once(mark: Path) -> None:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
