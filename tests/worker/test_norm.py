"""The norm of gradients: as torch's, and with the same bits for every number of threads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import reknit
from reknit.core.errors import NotFinite, UsageError
from reknit.worker.norm import clip, norm_of


def gradients(scale: float = 1.0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(2)
    shapes = [(300, 1000), (4096,), (1,), (), (0,), (7, 3), (4097,), (64 * 4096 + 5,)]
    made = [scale * torch.randn(shape, generator=g) for shape in shapes]
    made.append(torch.randn(50, 60, generator=g).t())
    made.append(torch.randn(300, generator=g).to(torch.bfloat16))
    made.append(torch.randn(300, generator=g).to(torch.float16))
    made.append(torch.randn(300, generator=g, dtype=torch.float64))
    made.append(torch.randn(30, generator=g, dtype=torch.complex64))
    return made


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 0.5, 3.0, math.inf])
def test_as_torch_has_it(norm_type: float) -> None:
    real = [torch.view_as_real(g) if g.is_complex() else g for g in gradients()]
    expected = torch.linalg.vector_norm(torch.cat([g.double().reshape(-1) for g in real]), norm_type)
    assert norm_of(gradients(), norm_type) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_the_bits_do_not_depend_on_the_number_of_threads(norm_type: float) -> None:
    found, torchs = set(), set()
    for threads in (1, 2, 3, 4, 7):
        torch.set_num_threads(threads)
        found.add(norm_of(gradients(), norm_type).hex())
        torchs.add(float(torch.cat([g.real.double().reshape(-1) for g in gradients()]).square().sum()))
    assert len(found) == 1
    assert len(torchs) > 1, "torch's own sum does not depend on threads here: this test shows nothing"


@pytest.mark.parametrize("max_norm", [0.3, 1e9])
def test_clipping_scales_as_torch_does(max_norm: float) -> None:
    ours = [g.clone() for g in gradients() if g.dtype == torch.float32]
    theirs = [nn.Parameter(torch.zeros_like(g)) for g in ours]
    for p, g in zip(theirs, ours, strict=True):
        p.grad = g.clone()
    norm = clip(ours, max_norm)
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(theirs, max_norm)), rel=1e-5)
    assert norm_of(ours) == pytest.approx(min(norm, max_norm), rel=1e-5)
    for p, g in zip(theirs, ours, strict=True):
        torch.testing.assert_close(g, p.grad)


def test_a_norm_below_the_limit_changes_no_bit() -> None:
    ours = gradients()
    clip(ours, 1e9)
    assert all(torch.equal(a, b) for a, b in zip(ours, gradients(), strict=True))


def test_half_precision_is_scaled_by_the_whole_factor() -> None:
    ours = [torch.full((3,), 1.0), torch.full((3,), 3.0, dtype=torch.bfloat16)]
    norm = clip(ours, 0.7)
    assert torch.equal(ours[1], torch.full((3,), 3.0 * 0.7 / (norm + 1e-6)).to(torch.bfloat16))


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(bad: float, norm_type: float) -> None:
    ours = [torch.ones(5000), torch.ones(3)]
    ours[0][4200] = bad
    assert not math.isfinite(norm_of(ours, norm_type))
    before = [g.clone() for g in ours]
    with pytest.raises(NotFinite, match=r"norm of order .* is (nan|inf)"):
        clip(ours, 1.0, norm_type, error_if_nonfinite=True)
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(ours, before, strict=True))
    with pytest.raises(RuntimeError):
        clip(ours, 1.0, norm_type, error_if_nonfinite=True)
    theirs = nn.Parameter(torch.zeros(5000))
    theirs.grad = before[0].clone()
    nn.utils.clip_grad_norm_([theirs], 1.0, norm_type)
    clip(ours, 1.0, norm_type)
    assert torch.equal(ours[0].isnan(), theirs.grad.isnan())


def test_wrong_norm_types_and_nothing_at_all() -> None:
    assert norm_of([]) == clip([], 1.0) == norm_of([torch.empty(0)]) == 0.0
    for wrong in (0.0, -2.0, math.nan):
        with pytest.raises(UsageError, match="norm_type"):
            norm_of(gradients(), wrong)


def test_where_a_script_may_clip() -> None:
    model = nn.Linear(3, 1)
    other = nn.Linear(3, 1)
    data = TensorDataset(torch.ones(8, 3))
    with reknit.join() as ring:
        with pytest.raises(UsageError, match="no gradient to clip"):
            ring.clip_grad_norm_(1.0)
        ring.track(model=model, other=other)
        for step in ring.steps(data, micro_batch=2, slots=4):
            with pytest.raises(UsageError, match="not in place yet"):
                ring.clip_grad_norm_(1.0)
            for (x,) in step:
                step.backward(model(x).sum() + 10 * other(x).sum())
                with pytest.raises(UsageError, match="not in place yet"):
                    ring.clip_grad_norm_(1.0)
            whole = ring.clip_grad_norm_(1e9)
            assert ring.clip_grad_norm_(0.5, parameters=model.parameters()) < whole
            assert norm_of([p.grad for p in model.parameters()]) == pytest.approx(0.5, rel=1e-5)
            assert norm_of([p.grad for p in other.parameters()]) > 0.5
            assert ring.clip_grad_norm_(1.0, parameters=[nn.Parameter(torch.ones(1))]) == 0.0
