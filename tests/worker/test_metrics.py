"""Metrics of a step, and where NaN and Inf come from: the same on every worker, whoever computed what."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import reknit
from reknit.core.context import Endpoint
from reknit.core.errors import UsageError
from reknit.core.events import StepNotFinite
from reknit.core.order import Course
from support.cases import SEED
from support.crews import Crew, alone, until

DATA = TensorDataset(torch.arange(12.0).unsqueeze(1))


def steps(ring: reknit.Ring, micro_batch: int = 2, slots: int = 3, **more: Any) -> Any:
    ring.track(model=nn.Linear(1, 1))
    return ring.steps(DATA, micro_batch=micro_batch, slots=slots, **more)


def test_means_over_the_global_batch_weighted_by_samples() -> None:
    """11 samples, 3 slots of 4 (the tail has two of 2 and 1): each sample counts once."""
    data = TensorDataset(torch.arange(11.0).unsqueeze(1) ** 2)
    seen: list[float] = []
    with reknit.join() as ring:
        ring.track(model=nn.Linear(1, 1))
        for step in ring.steps(data, micro_batch=2, slots=4):
            for (x,) in step:
                step.log(mean=x.mean(), count=len(x), single=np.float32(0.1), flag=True, one=torch.ones(1))
            assert step.metrics["single"] == pytest.approx(np.float64(np.float32(0.1)), rel=1e-15)
            assert step.metrics["flag"] == step.metrics["one"] == 1.0
            seen.append(step.metrics["mean"])
    assert seen[0] * 8 + seen[1] * 3 == pytest.approx(float(sum(x for (x,) in data)))


def test_a_metric_that_only_some_micro_batches_gave_is_averaged_over_those() -> None:
    with reknit.join() as ring:
        for step in steps(ring, micro_batch=4):
            for number, (x,) in enumerate(step):
                step.log(always=float(x.sum()))
                if number == 1:
                    step.log(once=7.0)
            assert step.metrics["once"] == 7.0
            assert step.metrics["always"] == pytest.approx(66.0 / 3)


def test_metrics_are_kept_in_fp64_and_may_be_nan() -> None:
    with reknit.join() as ring:
        for step in steps(ring, micro_batch=4):
            for number, _ in enumerate(step):
                step.log(tiny=1.0 + 2.0**-50, nan=math.nan if number == 0 else 1.0, inf=math.inf)
            assert step.metrics["tiny"] == 1.0 + 2.0**-50
            assert math.isnan(step.metrics["nan"])
            assert step.metrics["inf"] == math.inf
            assert step.nonfinite == (), "a metric is no gradient"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.ones(2), r"'acc' is a tensor of shape \(2,\)"),
        (torch.ones((), dtype=torch.complex64), "'acc' is a complex tensor"),
        ("0.5", "'acc' is a str"),
        (None, "'acc' is a NoneType"),
        ([0.5], "'acc' is a list"),
        (1j, "'acc' is a complex"),
    ],
)
def test_what_is_no_number_is_refused_by_name(value: Any, why: str) -> None:
    with reknit.join() as ring:
        step = next(steps(ring))
        next(iter(step))
        with pytest.raises(UsageError, match=why):
            step.log(acc=value)


def test_log_and_backward_belong_into_the_loop() -> None:
    with reknit.join() as ring:
        run = steps(ring)
        step = next(run)
        for call in (lambda: step.log(a=1.0), lambda: step.backward(torch.ones((), requires_grad=True))):
            with pytest.raises(UsageError, match="outside the loop over the micro-batches of step 0"):
                call()
        for _ in step:
            step.log(a=1.0)
            with pytest.raises(UsageError, match="'a' was logged twice"):
                step.log(a=1.0)
        assert step.metrics == {"a": 1.0}
        with pytest.raises(UsageError, match=r"step\.metrics now"):
            step.log(a=1.0)


def test_parameters_that_change_inside_the_loop_are_noticed() -> None:
    """optimizer.step() in the inner loop would train each worker on its own micro-batches."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        with reknit.join() as ring:
            ring.track(model=model, optimizer=optimizer)
            for step in ring.steps(DATA, micro_batch=2, slots=3):
                for (x,) in step:
                    step.backward(model(x).mean())
                    optimizer.step()

    with pytest.raises(UsageError, match=r"inside the loop over the micro-batches: model\.weight"):
        train()


# ------------------------------------------------------------------------------------------------------ not finite


def expected_bad() -> dict[str, list[list[Any]]]:
    course = Course(60, 4, 6, 2, SEED)
    bad = set(course.slot_samples(1, 2)[:2].tolist()) | {int(course.slot_samples(4, s)[0]) for s in range(6)}
    found: dict[str, list[list[Any]]] = {}
    for step in range(course.steps):
        for slot in range(6):
            ids = course.slot_samples(step, slot).tolist()
            if bad & set(ids):
                found.setdefault(str(step), []).append([slot, ids])
    return found


def test_bad_samples_are_named_in_a_world_of_one(tmp_path: Path) -> None:
    assert alone("support.cases:train", tmp_path, case="bad")["nonfinite"] == expected_bad()


def test_bad_samples_are_named_on_every_worker_and_on_the_log(endpoint: Endpoint, tmp_path: Path) -> None:
    with Crew(endpoint, tmp_path, "support.cases:train", case="bad") as crew:
        crew.start("w0", "w1", "w2")
        crew.world("w0", "w1", "w2", w2="spare")
        results = crew.finish("w0", "w1", "w2")
        until(lambda: crew.of(StepNotFinite), crew.story)
        told = crew.of(StepNotFinite)
    assert [r["nonfinite"] for r in results.values()] == [expected_bad()] * 3
    first = told[0]
    assert [[s.slot, list(s.samples)] for s in first.slots] == expected_bad()[str(first.step)]
    assert {s.worker for s in first.slots} <= {"w0", "w1"}
    assert first.step == min(map(int, expected_bad()))


@pytest.mark.parametrize(
    ("where", "value"), [("grad", math.inf), ("grad", math.nan), ("loss", math.nan), ("sum", 3e38)]
)
def test_gradient_and_loss_are_told_apart(where: str, value: float) -> None:
    """A gradient alone; a loss alone; a sum that overflows although each slot is finite, which is nobody's fault."""
    model = nn.Linear(1, 1)
    named = {}
    with reknit.join() as ring:
        ring.track(model=model)
        for step in ring.steps(DATA, micro_batch=2, slots=3):
            for number, (x,) in enumerate(step):
                loss = model(x).mean()
                if where == "loss" and number == 1:
                    step.backward(loss * 0 + value)
                    continue
                step.backward(loss)
                assert model.weight.grad is not None
                if where == "sum" or number == 1:
                    model.weight.grad.fill_(value if step.index == 1 else 1.0)
            named[step.index] = step.nonfinite
            if where == "sum" and step.index == 1:
                assert not torch.isfinite(model.weight.grad).all()
    ids = {step: tuple(Course(12, 2, 3, 1, 0).slot_samples(step, 1).tolist()) for step in (0, 1)}
    if where == "sum":
        assert named == {0: (), 1: ()}
    else:
        assert named[1] == ((1, ids[1]),)
        assert named[0] == (((1, ids[0]),) if where == "loss" else ())


def test_a_mask_of_infinities_is_no_fault() -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))
    with reknit.join() as ring:
        ring.track(model=model)
        for step in ring.steps(DATA, micro_batch=2, slots=3):
            for (x,) in step:
                step.backward(model(x).mean())
            assert step.nonfinite == ()
            assert bool(torch.isinf(model.mask).any())
