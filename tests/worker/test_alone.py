"""A world of one against the same arithmetic written down in plain torch: bit for bit, for awkward models."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import reknit
from reknit.core.errors import StateError, UsageError
from reknit.core.order import Course, slot_seed

SLOTS, MICRO, SAMPLES, EPOCHS = 4, 6, 50, 2


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def data(dtype=torch.float32) -> TensorDataset:
    g = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, 8, generator=g)
    return TensorDataset(x.to(dtype), (x[:, 0] > 0).long())


class Counting(nn.Module):
    """Buffers of several kinds, one of them assigned anew in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("table", torch.linspace(0.1, 0.7, 5) / 3, persistent=False)

    def forward(self, x):
        self.seen = self.seen + len(x)
        self.mean.mul_(0.9).add_(x.detach().float().mean(0), alpha=0.1)
        return x * (1 + 0 * self.table.sum())


def mlp() -> nn.Module:
    return nn.Sequential(Counting(), nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))


class Tied(nn.Module):
    """Tied weights, a frozen layer and a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.b(torch.relu(self.frozen(self.a(x)))))


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def reference(model, make_optimizer, dataset) -> nn.Module:
    """Slot by slot: gradients kept apart in fp32, summed in slot order, divided once; buffers averaged likewise."""
    optimizer = make_optimizer(model)
    course = Course(len(dataset), MICRO, SLOTS, EPOCHS, 3)
    for t in range(course.steps):
        first, end = course.span(t)
        total, divisor = None, (end - first) / MICRO
        then = [b.clone() for b in model.buffers()]
        changed = [False] * len(then)
        ints: list = []
        for s in range(SLOTS):
            ids = course.slot_samples(t, s)
            if not len(ids):
                continue
            model.zero_grad(set_to_none=True)
            for b, old in zip(model.buffers(), then, strict=True):
                b.copy_(old)
            seed_all(slot_seed(3, t, s))
            x, y = torch.utils.data.default_collate([dataset[int(i)] for i in ids])
            F.cross_entropy(model(x).float(), y).backward()
            weight = len(ids) / MICRO
            now = [b.clone() for b in model.buffers()]
            changed = [c or not torch.equal(n, o) for c, n, o in zip(changed, now, then, strict=True)]
            if s == 0:
                ints = now
            parts = [None if p.grad is None else p.grad.float() for p in model.parameters()] + [
                b.float() if b.is_floating_point() else None for b in now
            ]
            parts = [None if p is None else (p * weight if weight != 1 else p.clone()) for p in parts]
            total = parts if total is None else [b if a is None else a + b for a, b in zip(total, parts, strict=True)]
        n = len(list(model.parameters()))
        for p, g in zip(model.parameters(), total[:n], strict=True):
            p.grad = None if g is None else (g / divisor).to(p.dtype)
        for b, old, c, g, i in zip(model.buffers(), then, changed, total[n:], ints, strict=True):
            b.copy_(old if not c else (i if g is None else (g / divisor).to(b.dtype)))
        optimizer.step()
    return model


def through_reknit(model, make_optimizer, dataset, **options) -> nn.Module:
    optimizer = make_optimizer(model)
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        for step in ring.steps(dataset, micro_batch=MICRO, slots=SLOTS, epochs=EPOCHS, seed=3, **options):
            for x, y in step:
                step.backward(F.cross_entropy(model(x).float(), y))
            optimizer.step()
    return model


def adamw(m):
    return torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=0.01, weight_decay=0.1)


@pytest.mark.parametrize("make", [mlp, Tied], ids=["batchnorm-dropout-buffers", "tied-frozen-unused"])
def test_the_same_bits_as_plain_torch(make):
    torch.manual_seed(0)
    model = make()
    twin = copy.deepcopy(model)
    expected = reference(twin, adamw, data()).state_dict()
    got = through_reknit(model, adamw, data()).state_dict()
    for name, tensor in expected.items():
        assert torch.equal(tensor, got[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(dtype)
    start = copy.deepcopy(model.state_dict())
    trained = through_reknit(model, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), data(dtype)).state_dict()
    assert all(t.dtype == dtype for t in trained.values())
    assert any(not torch.equal(start[n], trained[n]) for n in start)
    assert all(torch.isfinite(t).all() for t in trained.values())


def test_a_parameter_that_nobody_used_has_no_gradient():
    torch.manual_seed(0)
    model = Tied()
    through_reknit(model, adamw, data())
    assert model.unused.grad is None
    assert torch.equal(model.unused, torch.ones(3)), "weight decay must not touch it"


def test_a_constant_buffer_keeps_its_bits():
    torch.manual_seed(0)
    model = mlp()
    table = model[0].table.clone()
    through_reknit(model, adamw, data())
    assert torch.equal(model[0].table, table)
    assert int(model[0].seen) > 0


def test_nan_reaches_every_gradient_and_the_loss():
    torch.manual_seed(0)
    x, y = data().tensors
    x[7] = float("nan")
    model = nn.Linear(8, 2)
    losses = []
    with reknit.join() as ring:
        ring.track(model=model)
        for step in ring.steps(TensorDataset(x, y), micro_batch=MICRO, slots=SLOTS, epochs=1, seed=3):
            for bx, by in step:
                step.backward(F.cross_entropy(model(bx), by))
            losses.append(step.loss)
            bad = bool(torch.isnan(model.weight.grad).any())
            assert bad == (step.loss != step.loss)
    assert sum(x != x for x in losses) == 1


def test_sparse_gradients_are_reduced_like_dense_ones():
    g = torch.Generator().manual_seed(1)
    ids = TensorDataset(torch.randint(0, 9, (SAMPLES, 3), generator=g), torch.randint(0, 2, (SAMPLES,), generator=g))
    results = []
    for sparse in (False, True):
        torch.manual_seed(0)
        embedding = nn.Embedding(9, 4, sparse=sparse, padding_idx=0)
        head = nn.Linear(4, 2)
        model = nn.ModuleDict({"e": embedding, "h": head})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with reknit.join() as ring:
            ring.track(model=model, optimizer=optimizer)
            for step in ring.steps(ids, micro_batch=MICRO, slots=SLOTS, epochs=EPOCHS, seed=3):
                for x, y in step:
                    step.backward(F.cross_entropy(head(embedding(x).mean(1)), y))
                optimizer.step()
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_non_contiguous_parameters_and_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    x, y = torch.randn(SAMPLES, 1, 4, 4), data().tensors[1]
    sgd = lambda m: torch.optim.SGD(m.parameters(), lr=0.1)  # noqa: E731
    expected = reference(twin, sgd, TensorDataset(x, y)).state_dict()
    got = through_reknit(model, sgd, TensorDataset(x, y)).state_dict()
    assert all(torch.equal(expected[n], got[n]) for n in expected)


class Two(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.ones(8) * i, i


def test_fewer_samples_than_slots():
    model = nn.Linear(8, 2)
    seen = []
    with reknit.join() as ring:
        ring.track(model=model)
        for step in ring.steps(Two(), micro_batch=4, slots=8, epochs=3, seed=0):
            for x, y in step:
                seen.append(sorted(y.tolist()))
                step.backward(F.cross_entropy(model(x), y))
    assert seen == [[0, 1]] * 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"micro_batch": 0}, "micro_batch is 0"),
        ({"micro_batch": 4, "slots": 0}, "slots is 0"),
        ({"micro_batch": 4, "epochs": 0}, "epochs is 0"),
        ({"micro_batch": 4, "dataset": []}, "empty"),
        ({"micro_batch": 4, "dataset": iter([1])}, "cannot be split"),
    ],
)
def test_bad_numbers_are_named(options, why):
    options = {"dataset": data()} | options
    with reknit.join() as ring:
        ring.track(model=nn.Linear(8, 2))
        with pytest.raises(UsageError, match=why):
            ring.steps(options.pop("dataset"), **options)


def test_wrong_use_is_named():
    with reknit.join() as ring:
        with pytest.raises(StateError, match="joined already"):
            reknit.join()
        with pytest.raises(UsageError, match="nothing to train"):
            ring.steps(data(), micro_batch=4)
        with pytest.raises(StateError, match="state_dict"):
            ring.track(model=3)
        ring.track(model=nn.Linear(8, 2))
        steps = ring.steps(data(), micro_batch=4)
        with pytest.raises(UsageError, match=r"before ring\.steps"):
            ring.track(other=nn.Linear(1, 1))
        with pytest.raises(UsageError, match="second time"):
            ring.steps(data(), micro_batch=4)
        step = next(steps)
        for _ in step:
            break
        with pytest.raises(UsageError, match="left early"):
            next(steps)


def test_nothing_is_left_after_a_session():
    import threading

    before = set(threading.enumerate())
    through_reknit(nn.Linear(8, 2), adamw, data())
    assert set(threading.enumerate()) <= before
    with reknit.join():
        pass
