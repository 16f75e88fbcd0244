"""Training scripts that hold what real ones hold, written once: for a ring (`train`), and for plain torch (plain.py).

A case says what a script says: `objects` to track, `inner` for a micro-batch, `after` for a step. `train` leaves a
trail of hashes, one a step, so that a test can name the first step in which two histories differ.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset, TensorDataset

from reknit.core.order import Course

SEED = 3


class Case:
    """What a script does, without saying who runs it."""

    micro, slots, epochs = 4, 6, 2
    dataset: Dataset[Any]

    def objects(self) -> dict[str, Any]:
        """What is tracked."""
        raise NotImplementedError

    def inner(self, step: Any, batch: Any) -> None:
        """One micro-batch."""
        raise NotImplementedError

    def after(self, step: Any, ring: Any) -> None:
        """After the loop over the micro-batches."""
        raise NotImplementedError


def _data(samples: int = 100, width: int = 8) -> TensorDataset:
    g = torch.Generator().manual_seed(5)
    x = torch.randn(samples, width, generator=g)
    return TensorDataset(x, (x[:, 0] + 0.3 * x[:, 1] > 0).long())


# ---------------------------------------------------------------------------------- several optimizers, schedulers, EMA


class _Trunk(nn.Module):
    """Tied, frozen and never used parameters; batch norm; two heads of which a micro-batch uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.heads = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 2)])

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](self.drop(self.norm(self.b(torch.relu(self.frozen(self.a(x)))))))


class _Average:
    """A running average written by hand, with a state_dict."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.updates = 0

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(0.9, self.updates / (self.updates + 9))
        with torch.no_grad():
            for name, p in model.named_parameters():
                self.shadow[name].mul_(decay).add_(p, alpha=1 - decay)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow, self.updates = dict(state["shadow"]), state["updates"]


class Many(Case):
    """Two optimizers (SGD with momentum, AdamW with two groups), three schedulers, two averages, two backwards."""

    def __init__(self) -> None:
        self.dataset = _data()
        self.model = _Trunk()
        heads = list(self.model.heads.parameters())
        trunk = [p for n, p in self.model.named_parameters() if not n.startswith("heads") and p.requires_grad]
        self.sgd = torch.optim.SGD(trunk, lr=0.1, momentum=0.9, weight_decay=0.01)
        groups = [{"params": heads[:2], "lr": 0.01}, {"params": heads[2:], "weight_decay": 0.5}]
        self.adamw = torch.optim.AdamW(groups, lr=0.02)
        self.cycle = lr_scheduler.OneCycleLR(self.sgd, max_lr=0.2, total_steps=40)
        self.cosine = lr_scheduler.CosineAnnealingLR(self.adamw, T_max=3)
        self.plateau = lr_scheduler.ReduceLROnPlateau(self.adamw, patience=1, factor=0.7)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
        self.by_hand = _Average(self.model)

    def objects(self) -> dict[str, Any]:
        names = ("model", "sgd", "adamw", "cycle", "cosine", "plateau", "average", "by_hand")
        return {name: getattr(self, name) for name in names}

    def inner(self, step: Any, batch: Any) -> None:
        x, y = batch
        out = self.model(x, int(y[0]))
        half = max(1, len(x) // 2)
        loss = F.cross_entropy(out[:half], y[:half], reduction="sum") / len(x)
        step.backward(loss, retain_graph=True)
        if len(x) > half:
            step.backward(F.cross_entropy(out[half:], y[half:], reduction="sum") / len(x))
        step.log(accuracy=(out.argmax(1) == y).double().mean())
        if int(y[0]):
            step.log(second_head=float(out.detach().mean()))

    def after(self, step: Any, ring: Any) -> None:
        self.norm = ring.clip_grad_norm_(0.5)
        self.sgd.step()
        self.adamw.step()
        self.cycle.step()
        if step.ends_epoch:
            self.cosine.step()
        self.plateau.step(step.loss)
        self.average.update_parameters(self.model)
        self.by_hand.update(self.model)


# ------------------------------------------------------------------------------------------------------ mixed precision


class Amp(Case):
    """fp16 autocast with a GradScaler that overflows now and then, and grows again."""

    def __init__(self) -> None:
        self.dataset = _data()
        self.model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=2)

    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}

    def inner(self, step: Any, batch: Any) -> None:
        x, y = batch
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        step.backward(loss, scaler=self.scaler)

    def after(self, step: Any, ring: Any) -> None:
        self.scaler.unscale_(self.optimizer)
        self.norm = ring.clip_grad_norm_(1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()


# ------------------------------------------------------------------------------------------------------- odd parameters


class _Counter:
    """A custom object: counters, numpy arrays, text, nested containers."""

    def __init__(self) -> None:
        self.seen, self.curve, self.best = 0, np.zeros(4), {"step": -1, "loss": float("inf")}

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "curve": self.curve.copy(), "best": dict(self.best), "kind": ("counter", 1)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.curve, self.best = state["seen"], state["curve"].copy(), dict(state["best"])


class _Odd(nn.Module):
    """Sparse with padding, transposed, complex, bf16 and fp64 parameters; buffers assigned anew in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 6, padding_idx=0, sparse=True)
        self.transposed = nn.Parameter(torch.randn(5, 6).t())
        self.wave = nn.Parameter(torch.randn(6, dtype=torch.complex64))
        self.low = nn.Linear(5, 5).to(torch.bfloat16)
        self.high = nn.Linear(5, 2).double()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        x = self.words(ids).sum(1)
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        x = x * torch.view_as_real(self.wave * self.wave.conj())[:, 0]
        x = (x @ self.transposed).to(torch.bfloat16)
        return self.high(torch.tanh(self.low(x)).double())


class Odd(Case):
    """Parameters and buffers of all kinds; plain SGD, which has no state; a custom object."""

    micro = 3

    def __init__(self) -> None:
        g = torch.Generator().manual_seed(1)
        ids = torch.randint(0, 12, (50, 4), generator=g)
        ids[::5] = 0  # some micro-batches hold padding only
        self.dataset = TensorDataset(ids, torch.randint(0, 2, (50,), generator=g))
        self.model = _Odd()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)
        self.counter = _Counter()

    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "counter": self.counter}

    def inner(self, step: Any, batch: Any) -> None:
        ids, y = batch
        step.backward(F.cross_entropy(self.model(ids), y))

    def after(self, step: Any, ring: Any) -> None:
        self.norm = ring.clip_grad_norm_(0.8)
        self.optimizer.step()
        self.counter.seen += 1
        self.counter.curve[step.index % 4] += step.loss
        if step.loss < self.counter.best["loss"]:
            self.counter.best = {"step": step.index, "loss": step.loss}


# --------------------------------------------------------------------------------------------------------- bad batches


class Skip(Case):
    """A script that leaves bad batches out: without a backward they have no weight; one step has no good one at all."""

    def __init__(self) -> None:
        self.dataset = _data(60)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        course = Course(60, self.micro, self.slots, self.epochs, SEED)
        bad = [int(i) for i in course.slot_samples(1, 2)[:2]]
        bad += [int(course.slot_samples(4, s)[0]) for s in range(self.slots)]
        self.dataset.tensors[0][bad] = float("nan")

    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def inner(self, step: Any, batch: Any) -> None:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        if not torch.isfinite(loss):
            return
        step.backward(loss)

    def after(self, step: Any, ring: Any) -> None:
        self.norm = ring.clip_grad_norm_(0.2)
        self.optimizer.step()


class Bad(Skip):
    """The same data, and a script that does not look: NaN reaches everybody, and is named."""

    def inner(self, step: Any, batch: Any) -> None:
        x, y = batch
        step.backward(F.cross_entropy(self.model(x), y))

    def after(self, step: Any, ring: Any) -> None:
        self.norm = ring.clip_grad_norm_(0.2)
        if math.isfinite(self.norm):
            self.optimizer.step()


CASES: dict[str, Callable[[], Case]] = {"many": Many, "amp": Amp, "odd": Odd, "skip": Skip, "bad": Bad}


def make(name: str, seed: int = 0) -> Case:
    """A case with fresh weights."""
    torch.manual_seed(seed)
    return CASES[name]()


# -------------------------------------------------------------------------------------------------------- who runs them


def sha(value: Any) -> str:
    """A hash of everything in nested state, types and bits."""
    hasher = hashlib.sha256()

    def take(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            plain = value.detach().contiguous()
            hasher.update(f"{value.dtype}{tuple(value.shape)}".encode())
            hasher.update(plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
        elif isinstance(value, np.ndarray):
            hasher.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        elif isinstance(value, dict):
            for key in value:
                hasher.update(repr(key).encode())
                take(value[key])
        elif isinstance(value, list | tuple):
            hasher.update(f"{type(value).__name__}{len(value)}".encode())
            for item in value:
                take(item)
        else:
            hasher.update(repr(value).encode())

    take(value)
    return hasher.hexdigest()[:16]


def hashes(case: Case) -> dict[str, str]:
    """Hash of each tracked object; modules with the buffers that are not persistent."""
    found = {}
    for name, value in case.objects().items():
        found[name] = sha(value.state_dict())
        if isinstance(value, nn.Module):
            found[f"{name}.buffers"] = sha(dict(value.named_buffers()))
    return found


def told(case: Case, step: Any) -> list[Any]:
    """What a step left behind, as plain values that JSON keeps bit for bit."""
    loss = None if step.loss is None else float(step.loss).hex()
    metrics = {name: value.hex() for name, value in step.metrics.items()}
    grads = sha([p.grad for m in case.objects().values() if isinstance(m, nn.Module) for p in m.parameters()])
    return [hashes(case), loss, metrics, float(getattr(case, "norm", 0.0)).hex(), grads]


def train(
    ring: Any,
    gate: Any,
    case: str,
    seeds: dict[str, int] | None = None,
    epochs: int = 0,
    pace: float = 0.0,
    **_: Any,
) -> dict[str, Any]:
    """Run a case through reknit.

    Args:
        seeds: worker -> of its fresh weights, 0 where it is not named.
        epochs: other than the case's own.
        pace: seconds longer a micro-batch, so that there is time for something to happen.
    """
    c = make(case, (seeds or {}).get(ring.id, 0))
    ring.track(**c.objects())
    trail = {}
    nonfinite = {}
    for step in ring.steps(c.dataset, micro_batch=c.micro, slots=c.slots, epochs=epochs or c.epochs, seed=SEED):
        for number, batch in enumerate(step):
            gate.pass_by(step.index, number)
            time.sleep(pace)
            c.inner(step, batch)
        c.after(step, ring)
        trail[str(step.index)] = told(c, step)
        if step.nonfinite:
            nonfinite[str(step.index)] = [[slot, list(ids)] for slot, ids in step.nonfinite]
    return {"trail": trail, "final": hashes(c), "nonfinite": nonfinite}
