"""Flat buffers in page-locked memory: what a GPU reads and writes without a copy in between, beside its computing."""

from __future__ import annotations

import dataclasses

import torch

from reknit.worker.ring.pieces import Buffer, Shape


@dataclasses.dataclass(frozen=True)
class PinnedShape(Shape):
    """A shape whose buffers are page-locked; they are pooled, so each is locked once."""

    def empty(self) -> Buffer:
        """A new buffer with undefined content."""
        buffer: Buffer = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True).numpy()
        return buffer


def fitting(shape: Shape, devices: set[str]) -> Shape:
    """The shape for parameters on devices of these types: page-locked if a GPU is among them."""
    return PinnedShape(shape.sections) if "cuda" in devices else shape
