"""A canary: a fixed set of kernels on fixed inputs; two machines whose digests differ would train to other bits.

Forward and backward of what models are made of, in fp32 and bf16, and two optimizers' steps. Inputs come from a
generator of its own and from nothing that rounds, so they are the same bits everywhere; the process's own random
numbers, modes and flags stay as they are, and what the flags change, the canary shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
import xxhash

_SEED = 20_231


def sing() -> str:
    """Compute the canary and return its digest, 16 hex digits; some ten milliseconds.

    It is computed on the host. What a GPU computes is not reproducible without flags that only the script can set; its
    model and those flags are part of the contract.
    """
    inputs = _Inputs()
    hasher = xxhash.xxh3_64()
    with _plain():
        for kernel in _KERNELS:
            for value in kernel(inputs):
                raw = value.detach().contiguous().view(-1).view(torch.uint8)
                hasher.update(raw.numpy().data)
    return hasher.hexdigest()


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """Gradients on, autocast off, whatever the script has switched before."""
    with torch.inference_mode(mode=False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        yield


class _Inputs:
    """Numbers between -1 and 1, in steps of 2**-24, from a generator of their own."""

    def __init__(self) -> None:
        self._generator = torch.Generator("cpu").manual_seed(_SEED)

    def leaf(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A leaf that wants its gradient."""
        return self.plain(*shape).to(dtype).requires_grad_()

    def plain(self, *shape: int) -> torch.Tensor:
        """A tensor of float32."""
        return torch.rand(shape, generator=self._generator, dtype=torch.float32, device="cpu") * 2 - 1

    def whole(self, most: int, *shape: int) -> torch.Tensor:
        """Whole numbers below `most`."""
        return torch.randint(most, shape, generator=self._generator, dtype=torch.int64, device="cpu")


Kernel = Callable[[_Inputs], list[torch.Tensor]]


def _learned(value: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    """A value and the gradients of its leaves, under a weight for each element that no sum can hide."""
    weight = torch.arange(value.numel(), dtype=torch.float32, device="cpu").remainder(61).add(30).div(61)
    (value * weight.view_as(value).to(value.dtype)).sum().backward()
    return [value, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _matmul(inputs: _Inputs) -> list[torch.Tensor]:
    out = []
    for dtype in (torch.float32, torch.bfloat16):
        a, b, bias = inputs.leaf(48, 96, dtype=dtype), inputs.leaf(64, 96, dtype=dtype), inputs.leaf(64, dtype=dtype)
        out += _learned(F.linear(a, b, bias), a, b, bias)
    a, b = inputs.leaf(4, 17, 33), inputs.leaf(4, 33, 9)
    return out + _learned(torch.bmm(a, b), a, b)


def _conv(inputs: _Inputs) -> list[torch.Tensor]:
    x, w, b = inputs.leaf(4, 8, 12, 12), inputs.leaf(16, 8, 3, 3), inputs.leaf(16)
    out = _learned(F.max_pool2d(F.conv2d(x, w, b, padding=1), 2), x, w, b)
    x, w = inputs.leaf(2, 8, 10, 10), inputs.leaf(8, 1, 3, 3)
    return out + _learned(F.avg_pool2d(F.conv2d(x, w, groups=8, stride=2), 2), x, w)


def _norms(inputs: _Inputs) -> list[torch.Tensor]:
    x, w, b = inputs.leaf(8, 16, 6, 6), inputs.leaf(16), inputs.leaf(16)
    mean, var = inputs.plain(16), inputs.plain(16).abs()
    out = [*_learned(F.batch_norm(x, mean, var, w, b, training=True), x, w, b), mean, var]
    x, w, b = inputs.leaf(8, 12, 96), inputs.leaf(96), inputs.leaf(96)
    return out + _learned(F.layer_norm(x, (96,), w, b), x, w, b)


def _attention(inputs: _Inputs) -> list[torch.Tensor]:
    q, k, v = (inputs.leaf(2, 4, 24, 16) for _ in range(3))
    out = _learned(F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)
    q, k, v = (inputs.leaf(2, 4, 24, 16) for _ in range(3))
    return out + _learned(torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v, q, k, v)


def _pointwise(inputs: _Inputs) -> list[torch.Tensor]:
    out = []
    for function in (F.gelu, F.silu, torch.tanh, torch.sigmoid, torch.exp, F.softplus, torch.sin):
        x = inputs.leaf(257)
        out += _learned(function(x), x)
    return out


def _lookup(inputs: _Inputs) -> list[torch.Tensor]:
    table, logits = inputs.leaf(64, 24), inputs.leaf(40, 64)
    out = _learned(F.embedding(inputs.whole(64, 6, 20), table), table)
    return out + _learned(F.cross_entropy(logits, inputs.whole(64, 40)), logits)


def _sums(inputs: _Inputs) -> list[torch.Tensor]:
    x = inputs.plain(301, 67)
    return [x.sum(), x.mean(0), x.std(1), x.norm(), x.cumsum(0)[-1], torch.logsumexp(x, 1), x.to(torch.float64).prod(1)]


def _optimizers(inputs: _Inputs) -> list[torch.Tensor]:
    out = []
    for make in (
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    ):
        parameters = [inputs.leaf(31, 17), inputs.leaf(65)]
        optimizer = make(parameters)
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = inputs.plain(*parameter.shape)
            optimizer.step()
        out += parameters
    return out


_KERNELS: tuple[Kernel, ...] = (_matmul, _conv, _norms, _attention, _pointwise, _lookup, _sums, _optimizers)
