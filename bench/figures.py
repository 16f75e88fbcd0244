"""Statistics of measured values. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def median_and_max(values: Sequence[float], digits: int = 4) -> dict[str, float | None]:
    """Return median and maximum, None where there is no value."""
    if not values:
        return {"median": None, "max": None}
    return {"median": round(statistics.median(values), digits), "max": round(max(values), digits)}


def quantiles(values: Sequence[float], at: Sequence[float], digits: int = 1) -> list[float | None]:
    """Return the smallest value that at least such a part of all values does not exceed, for each part; None: no value.

    Args:
        values: in any order.
        at: parts, above 0 to 1.
        digits: of the results.
    """
    ordered = sorted(values)
    return [round(ordered[math.ceil(part * len(ordered)) - 1], digits) if ordered else None for part in at]


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the least-squares slope of y over x; 0 for fewer than two different x.

    Raises:
        ValueError: the lengths differ.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} x for {len(y)} y")
    if len(set(x)) < 2:
        return 0.0
    return statistics.linear_regression(x, y).slope
