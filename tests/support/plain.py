"""The cases in plain torch: what a ring must have the bits of, written down once more, without any of its code."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import default_collate

from reknit.core.order import Course, slot_seed
from support.cases import SEED, hashes, make, told


class PlainStep:
    """The step of a plain loop."""

    def __init__(self, index: int, course: Course) -> None:
        self.index, self.epoch = index, course.epoch_of(index)
        self.ends_epoch = (index + 1) % course.steps_an_epoch == 0
        self.loss: float | None = None
        self.metrics: dict[str, float] = {}
        self.slot_loss: float | None = None
        self.slot_metrics: dict[str, float] = {}

    def backward(self, loss: torch.Tensor, scaler: Any = None, **options: Any) -> None:
        (scaler.scale(loss) if scaler is not None else loss).backward(**options)
        self.slot_loss = (self.slot_loss or 0.0) + float(loss.detach())

    def log(self, **metrics: Any) -> None:
        self.slot_metrics |= {name: float(value) for name, value in metrics.items()}


class PlainRing:
    """What `after` may ask of a ring, written down once more."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters

    def clip_grad_norm_(self, max_norm: float) -> float:
        total = 0.0
        for p in self.parameters:
            if p.grad is not None:
                flat = (torch.view_as_real(p.grad) if p.grad.is_complex() else p.grad).contiguous().view(-1)
                for row in flat.double().split(4096):
                    whole = F.pad(row, (0, 4096 - len(row)))
                    total += float((whole * whole).sum())
        norm = total**0.5
        factor = min(1.0, max_norm / (norm + 1e-6)) if norm == norm else norm
        for p in self.parameters:
            if p.grad is not None:
                low = p.grad.dtype in (torch.bfloat16, torch.float16)
                p.grad = (p.grad.float() * factor).to(p.grad.dtype) if low else p.grad * factor
        return norm


def plain(name: str) -> dict[str, Any]:
    """Run a case in plain torch: slot by slot, gradients kept apart in fp32, summed in slot order, divided once."""
    c = make(name)
    course = Course(len(c.dataset), c.micro, c.slots, c.epochs, SEED)  # type: ignore[arg-type]
    modules = [m for m in c.objects().values() if isinstance(m, nn.Module)]
    trained = [m for m in modules if not isinstance(m, AveragedModel)]
    parameters = [p for m in trained for p in m.parameters() if p.requires_grad]
    ring = PlainRing(parameters)
    trail = {}
    for t in range(course.steps):
        step, sums = PlainStep(t, course), _Sums(modules, parameters)
        for slot in range(course.slots):
            ids = course.slot_samples(t, slot)
            if len(ids):
                sums.begin()
                seed_all(slot_seed(SEED, t, slot))
                step.slot_loss, step.slot_metrics = None, {}
                c.inner(step, default_collate([c.dataset[int(i)] for i in ids]))
                sums.add(slot, step, len(ids), len(ids) / course.micro_batch)
        sums.finish(step, course.micro_batch)
        seed_all(slot_seed(SEED, t, course.slots))
        c.after(step, ring)
        trail[str(t)] = told(c, step)
    return {"trail": trail, "final": hashes(c)}


class _Sums:
    """Gradients, buffers, loss and metrics of a step, folded slot by slot."""

    def __init__(self, modules: list[nn.Module], parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.places = [(m, n) for root in modules for m in root.modules() for n in m._buffers]
        self.then = [m._buffers[n].clone() for m, n in self.places]
        self.grads: list[Any] = [None] * len(parameters)
        self.buffers: list[Any] = [None] * len(self.places)
        self.changed = [False] * len(self.places)
        self.taken = self.samples = 0
        self.loss = [0.0, 0.0]
        self.metrics: dict[str, list[float]] = {}

    def begin(self) -> None:
        for p in self.parameters:
            p.grad = None
        for (m, n), old in zip(self.places, self.then, strict=True):
            m._buffers[n].copy_(old)

    def add(self, slot: int, step: PlainStep, samples: int, weight: float) -> None:
        self.samples += samples
        for i, p in enumerate(self.parameters):
            if p.grad is not None:
                part = _wide(p.grad.to_dense() if p.grad.is_sparse else p.grad) * weight
                self.grads[i] = part if self.grads[i] is None else self.grads[i] + part
        if step.slot_loss is not None or any(p.grad is not None for p in self.parameters):
            self.taken += samples
        for i, (m, n) in enumerate(self.places):
            self._add_buffer(i, m._buffers[n], slot, weight)
        if step.slot_loss is not None:
            self.loss = [self.loss[0] + step.slot_loss * samples, self.loss[1] + samples]
        for name, value in step.slot_metrics.items():
            before = self.metrics.get(name, [0.0, 0.0])
            self.metrics[name] = [before[0] + value * samples, before[1] + samples]

    def _add_buffer(self, i: int, now: torch.Tensor, slot: int, weight: float) -> None:
        self.changed[i] = self.changed[i] or not torch.equal(now, self.then[i])
        if now.is_floating_point() or now.is_complex():
            part = _wide(now) * weight
            self.buffers[i] = part if self.buffers[i] is None else self.buffers[i] + part
        elif slot == 0:
            self.buffers[i] = now.clone()

    def finish(self, step: PlainStep, micro_batch: int) -> None:
        for p, total in zip(self.parameters, self.grads, strict=True):
            p.grad = None if total is None else _narrow(total / ((self.taken or self.samples) / micro_batch), p)
        for i, (m, n) in enumerate(self.places):
            new = self.then[i]
            if self.changed[i]:
                fold = new.is_floating_point() or new.is_complex()
                new = _narrow(self.buffers[i] / (self.samples / micro_batch), new) if fold else self.buffers[i]
            m._buffers[n].copy_(new)
        step.loss = self.loss[0] / self.loss[1] if self.loss[1] else None
        step.metrics = {name: self.metrics[name][0] / self.metrics[name][1] for name in sorted(self.metrics)}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In the arithmetic that sums it: fp64 as it is, complex as pairs, all else fp32."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return (real if real.dtype == torch.float64 else real.float()).clone()


def _narrow(total: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    whole = torch.view_as_complex(total.contiguous()) if like.is_complex() else total
    return whole.to(like.dtype)


def seed_all(seed: int) -> None:
    """All three generators, as a slot begins."""
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
