"""Global means from sums and weights, with the same bits whoever measured what: one fold, in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Sums: TypeAlias = Mapping[str, tuple[float, float]]
"""Name -> (sum, weight) of one micro-batch, in fp64."""


def fold(batches: Iterable[Sums]) -> dict[str, float]:
    """Return the means over all micro-batches; sums are added one after another, in the order given.

    A metric counts in those micro-batches that have it; without any weight it is NaN. Names are sorted.
    """
    # not `sum`: since Python 3.12 it compensates, and the bits would depend on the version
    sums: dict[str, tuple[float, float]] = {}
    for batch in batches:
        for name, (total, weight) in batch.items():
            before = sums.get(name)
            sums[name] = (total, weight) if before is None else (before[0] + total, before[1] + weight)
    return {name: total / weight if weight else math.nan for name, (total, weight) in sorted(sums.items())}
