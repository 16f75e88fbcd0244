"""Every optimizer and every scheduler of torch: put into fresh ones, their state goes on in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR

from reknit.worker.state import copy_out, describe, load
from reknit.worker.tracked import Tracked

OPTIMIZERS = [
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
]


class Decay:
    """A rule of one's own, an object: LambdaLR keeps its attributes."""

    def __init__(self) -> None:
        self.by = 0.9

    def __call__(self, epoch: int) -> float:
        return self.by**epoch


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda e: 0.9**e),
    "LambdaLR of an object": lambda o: schedulers.LambdaLR(o, Decay()),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda _e: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [1, 5]),
    "ConstantLR": schedulers.ConstantLR,
    "LinearLR": schedulers.LinearLR,
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 5),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=20),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.1, 0.2),
    "CyclicLR of a function": lambda o: schedulers.CyclicLR(o, 0.1, 0.2, scale_fn=lambda _x: 0.5),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o), schedulers.CosineAnnealingLR(o, 5)], [4]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
    "SWALR": lambda o: SWALR(o, swa_lr=0.05),
}


def travel(here: dict[str, Any], there: dict[str, Any]) -> None:
    tracked = Tracked(**here)
    layout = describe(tracked)
    memory = bytearray(layout.total)
    copy_out(tracked, layout, memory)
    load(Tracked(**there), layout, memory)


def learn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.1 * step - 0.2)
        optimizer.step(lambda: torch.tensor(1.0))


def bits(model: torch.nn.Module) -> list[float]:
    return [value for p in model.parameters() for value in p.detach().flatten().tolist()]


@pytest.mark.parametrize(
    ("name", "tensor_lr"), [*((name, False) for name in OPTIMIZERS), *((n, True) for n in ("SGD", "Adam", "AdamW"))]
)
def test_an_optimizer_goes_on_where_the_other_was(name: str, tensor_lr: bool) -> None:
    kind = getattr(torch.optim, name)
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    pair = [
        (
            m,
            kind(
                [{"params": [m.weight]}, {"params": [m.bias], "lr": 0.05}], lr=torch.tensor(0.1) if tensor_lr else 0.1
            ),
        )
        if name != "LBFGS"
        else (m, kind(m.parameters(), lr=0.1))
        for m in models
    ]
    learn(*pair[0], 3)
    travel(*({"model": m, "optimizer": o} for m, o in pair))
    for model, optimizer in pair:
        learn(model, optimizer, 3)
    assert bits(models[0]) == bits(models[1])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_where_the_other_was(name: str) -> None:
    pair = []
    for _ in range(2):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        pair.append({"model": model, "optimizer": optimizer, "scheduler": SCHEDULERS[name](optimizer)})

    def rates(objects: dict[str, Any], steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            learn(objects["model"], objects["optimizer"], 1)
            objects["scheduler"].step(*([1.0] if name == "ReduceLROnPlateau" else []))
            found.append(objects["optimizer"].param_groups[0]["lr"])
        return found

    rates(pair[0], 3)
    travel(*pair)
    first, second = rates(pair[0], 6), rates(pair[1], 6)
    assert first == second
    assert len(set(first)) > 1 or name in ("ConstantLR", "SWALR"), "a rate that never changes shows nothing"
