"""The plain reference of the fixed point: Python integers and fractions, one element at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from reknit.worker.ring.pieces import Buffer, Section, Shape
from reknit.worker.transport.scale import BITS, HEADROOM, LOW, SLACK, UNKNOWN

FORMATS = {"f4": (np.float32, 149, 128), "f8": (np.float64, 1074, 1024)}


def exponent(largest: Fraction) -> int:
    """Smallest e with largest <= 2**e."""
    if largest == 0:
        return UNKNOWN
    e = largest.numerator.bit_length() - largest.denominator.bit_length() - 1
    while Fraction(2) ** e < largest:
        e += 1
    return e


def add_up(
    shape: Shape, buckets: Sequence[Section], slots: Sequence[Buffer], expected: Sequence[int], of: int
) -> tuple[Buffer, list[int]]:
    """The result buffer of a step, and the bounds of the next: `slots` are all used slots in order, `of` is V."""
    result = np.zeros(shape.nbytes, dtype=np.uint8)
    following = []
    for bucket, bound in zip(buckets, expected, strict=True):
        kind, finest, roof = FORMATS[bucket.dtype]
        values = [s[bucket.start : bucket.end].view(kind).tolist() for s in slots]
        seen = exponent(Fraction(max((abs(x) for row in values for x in row if math.isfinite(x)), default=0)))
        held = seen if seen != UNKNOWN and not bound - SLACK <= seen <= bound else bound
        following.append(bound if seen == UNKNOWN else min(seen + HEADROOM, roof))
        room = (of - 1).bit_length()
        k = 0 if held == UNKNOWN else min(BITS - room - held, finest)
        k += min(LOW, BITS + 1 - room) if bucket.dtype == "f8" else 0
        unit = Fraction(2) ** k
        place = result[bucket.start : bucket.end].view(kind)
        for at in range(len(place)):
            column = [row[at] for row in values]
            if any(math.isnan(x) for x in column) or (math.inf in column and -math.inf in column):
                place[at] = np.nan
            elif math.inf in column or -math.inf in column:
                place[at] = np.inf if math.inf in column else -np.inf
            else:
                counted = {x: round(Fraction(x) * unit) for x in set(column)}
                place[at] = nearest(sum(counted[x] for x in column) / unit, kind)
    for section in shape.sections:
        if section.dtype == "raw":
            result[section.start : section.end] = slots[0][section.start : section.end]
    return result, following


def nearest(exact: Fraction, kind: type) -> float:
    """The float nearest to a fraction, ties to even, in integers only."""
    bits, low, high = (24, -149, 128) if kind is np.float32 else (53, -1074, 1024)
    if exact == 0:
        return 0.0
    size = abs(exact)
    e = exponent(size)  # 2**(e-1) < size <= 2**e
    unit = max(e - bits, low)
    rounded = Fraction(round(size / Fraction(2) ** unit)) * Fraction(2) ** unit
    if rounded >= Fraction(2) ** high:
        return math.inf if exact > 0 else -math.inf
    return float(rounded) * (1 if exact > 0 else -1)  # exact: it has at most 53 bits
