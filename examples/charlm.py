"""A small transformer that learns to write like Python's own manual (the text that `pydoc` ships).

    reknit run --nproc-per-node 2 examples/charlm.py

Needs nothing but torch.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import reknit


class Text(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of a text: sample i is `block` characters from i * block on, and the same shifted by one.

    Args:
        text: the text.
        block: characters a sample.
    """

    def __init__(self, text: str, block: int) -> None:
        self.alphabet = sorted(set(text))
        numbers = {c: i for i, c in enumerate(self.alphabet)}
        self.codes = torch.tensor([numbers[c] for c in text], dtype=torch.int64)
        self.block = block

    def __len__(self) -> int:
        """Number of windows."""
        return (len(self.codes) - 1) // self.block

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Window and its continuation, each (block,)."""
        at = index * self.block
        return self.codes[at : at + self.block], self.codes[at + 1 : at + self.block + 1]


class Writer(nn.Module):
    """A decoder-only transformer.

    Args:
        alphabet: number of characters.
        block: longest context.
        width: model width.
        layers: number of blocks.
    """

    def __init__(self, alphabet: int, block: int, width: int = 96, layers: int = 2) -> None:
        super().__init__()
        self.token = nn.Embedding(alphabet, width)
        self.place = nn.Parameter(torch.zeros(block, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, alphabet)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Map codes (B, T) to logits (B, T, alphabet)."""
        length = codes.shape[1]
        x = self.token(codes) + self.place[:length]
        return self.head(self.blocks(x, mask=self.mask[:length, :length], is_causal=True))


def write(model: Writer, text: Text, begin: str, length: int) -> str:
    """Return `begin` and `length` characters more, drawn from the model."""
    numbers = {c: i for i, c in enumerate(text.alphabet)}
    codes = [numbers[c] for c in begin]
    model.eval()
    with torch.no_grad():
        for _ in range(length):
            logits = model(torch.tensor([codes[-text.block :]]))[0, -1]
            codes.append(int(torch.multinomial(F.softmax(logits / 0.7, dim=-1), 1)))
    return "".join(text.alphabet[c] for c in codes)


def main() -> None:
    """Train and print a sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--characters", type=int, default=200_000)
    parser.add_argument("--block", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    text = Text("\n".join(pydoc_data.topics.topics.values())[: args.characters], args.block)
    model = Writer(len(text.alphabet), args.block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with reknit.join() as ring:
        ring.track(model=model, optimizer=optimizer)
        for step in ring.steps(text, micro_batch=16, slots=4, epochs=args.epochs, seed=0):
            for codes, following in step:
                step.backward(F.cross_entropy(model(codes).flatten(0, 1), following.flatten()))
            optimizer.step()
            if ring.lead and step.ends_epoch:
                print(f"epoch {step.epoch}: loss {step.loss:.3f}", flush=True)
        if ring.lead:
            print(write(model, text, "The ", 300), flush=True)


if __name__ == "__main__":
    main()
