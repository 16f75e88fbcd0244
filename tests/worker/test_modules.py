"""Modules that touch their weights or buffers in forward: which are all right, and which are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm
from torch.utils.data import TensorDataset

import reknit
from reknit.core.errors import UsageError

DATA = TensorDataset(torch.arange(48).reshape(12, 4) % 7)


class OfWords(nn.Module):
    """Words to numbers, and a layer that is looked at."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6)
        self.layer = layer

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out = self.layer(self.words(ids))
        return (out[0] if isinstance(out, tuple) else out).float().pow(2).mean()


class Attention(nn.MultiheadAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, x, x)[0]


GOOD: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(6, 5, num_layers=2, dropout=0.1),
    "GRU": lambda: nn.GRU(6, 5),
    "attention": lambda: Attention(6, 2),
    "encoder": lambda: nn.TransformerEncoderLayer(6, 2, 8),
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(6, 5)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(6, 5)),
    "spectral_norm of old": lambda: spectral_norm(nn.Linear(6, 5)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(6, 6)),
    "in-place": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True)),
    "norms": lambda: nn.Sequential(nn.LayerNorm(6), nn.BatchNorm1d(4), nn.GroupNorm(2, 4)),
    "lazy": lambda: nn.Sequential(nn.Linear(6, 5), nn.LazyLinear(3)),
}


def train(model: nn.Module) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        for step in ring.steps(DATA, micro_batch=2, slots=3):
            for (ids,) in step:
                step.backward(model(ids))
            optimizer.step()
    assert step.loss is not None
    return step.loss


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", GOOD)
def test_what_is_all_right(name: str) -> None:
    torch.manual_seed(0)
    model = OfWords(GOOD[name]())
    model(DATA[:2][0])  # lazy ones take their shape
    assert train(model) < 10


def test_an_embedding_that_scales_its_rows_in_forward_is_refused_by_name() -> None:
    """`max_norm` changes the rows that a micro-batch uses: each worker would have changed others."""
    model = OfWords(nn.Identity())
    model.words = nn.Embedding(7, 6, max_norm=0.5)
    with pytest.raises(UsageError, match=r"inside the loop over the micro-batches: model\.words\.weight"):
        train(model)
