"""Chance from one seed: a stream for each use, so that one more draw in one place moves nothing elsewhere."""

from __future__ import annotations

import random


class Chance:
    """Makes random streams.

    Attributes:
        seed: what all of them come from.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, name: str) -> random.Random:
        """Return the stream of this name, from its beginning."""
        return random.Random(f"{self.seed}/{name}")
