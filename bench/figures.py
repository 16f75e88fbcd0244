"""Statistics of measured values. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def median_and_max(values: Sequence[float], digits: int = 4) -> dict[str, float | None]:
    """Return median and maximum, None where there is no value."""
    if not values:
        return {"median": None, "max": None}
    return {"median": round(statistics.median(values), digits), "max": round(max(values), digits)}


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
