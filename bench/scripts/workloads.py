"""Models and data that all systems under measurement share: the same weights, the same samples, the same batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

BATCH = 64
"""Samples of a step in all, however many workers there are, unless the workload says otherwise."""
VOCABULARY = 96
CONTEXT = 32


@dataclass(frozen=True)
class Workload:
    """A model with its data.

    Attributes:
        model: makes the model, always with the same weights.
        data: makes the dataset, always the same samples.
        loss: mean loss of a micro-batch from the model's output and the targets.
        batch: samples of a step in all.
    """

    model: Callable[[], nn.Module]
    data: Callable[[], Dataset[tuple[Tensor, ...]]]
    loss: Callable[[Tensor, Tensor], Tensor]
    batch: int = BATCH


def mlp() -> nn.Module:
    """256-800-800-200-10: 1.0 M parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 800),
        nn.ReLU(),
        nn.Linear(800, 800),
        nn.ReLU(),
        nn.Linear(800, 200),
        nn.ReLU(),
        nn.Linear(200, 10),
    )


def wide() -> nn.Module:
    """1024-4096-4096-1000: 25.1 M parameters, light on compute for their number."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


def wide_vectors() -> TensorDataset:
    """Random vectors (2048, 1024) and labels (2048,) of 1000 classes."""
    draw = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(2048, 1024, generator=draw), torch.randint(1000, (2048,), generator=draw))


def vectors(samples: int = 8192) -> TensorDataset:
    """Random vectors (samples, 256) and labels (samples,) of 10 classes."""
    draw = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(samples, 256, generator=draw), torch.randint(10, (samples,), generator=draw))


def conv() -> nn.Module:
    """Three convolutions with batch norm, two linear layers: 0.55 M parameters, heavy on compute."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels, wider in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(channels, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 224), nn.ReLU(), nn.Linear(224, 10))


def images(samples: int = 2048) -> TensorDataset:
    """Random images (samples, 3, 32, 32) and labels (samples,) of 10 classes."""
    draw = torch.Generator().manual_seed(1)
    pictures = torch.randn(samples, 3, 32, 32, generator=draw)
    return TensorDataset(pictures, torch.randint(10, (samples,), generator=draw))


class Transformer(nn.Module):
    """A causal language model: 8 layers of width 512, 25.3 M parameters."""

    def __init__(self, width: int = 512, layers: int = 8) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.zeros(CONTEXT, width))
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)
        self.mask: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (n, CONTEXT) to logits (n, CONTEXT, VOCABULARY)."""
        hidden = self.token(tokens) + self.place
        logits: Tensor = self.out(self.blocks(hidden, mask=self.mask, is_causal=True))
        return logits


def transformer() -> nn.Module:
    """Return a Transformer, always with the same weights."""
    torch.manual_seed(0)
    return Transformer()


def language() -> nn.Module:
    """Return a Transformer of 0.82 M parameters, always with the same weights."""
    torch.manual_seed(0)
    return Transformer(width=128, layers=4)


def texts(samples: int = 4096) -> TensorDataset:
    """Random token sequences (samples, CONTEXT) and the same ones shifted by one."""
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (samples, CONTEXT + 1), generator=draw)
    return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over all places."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


WORKLOADS = {
    "mlp": Workload(mlp, vectors, nn.functional.cross_entropy),
    "wide": Workload(wide, wide_vectors, nn.functional.cross_entropy),
    "conv": Workload(conv, images, nn.functional.cross_entropy),
    "language": Workload(language, texts, next_token_loss, batch=128),
    "transformer": Workload(transformer, texts, next_token_loss, batch=8),
}
