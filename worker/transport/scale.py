"""Scales of the fixed point: from the largest element of a bucket to the power of two that its elements are counted in.

An element x of a bucket with bound 2**e is counted as the integer nearest to x * 2**k (ties to even), with
k = `BITS` - ceil(log2(slots)) - e, so that no sum over all slots leaves 62 bits and a sign. For f8 there is a second
integer for what the first one leaves, in units 2**`LOW` times finer. Integers add up exactly in any order: that is the
whole of it.

The bound of a step is 2**`HEADROOM` times the largest element of the step before, so it is known before the first
gradient is; it is checked afterwards against the largest element of all slots, and where it does not fit, the bucket is
counted again with the true one. Both depend on the slots' gradients alone, not on who computed which. The bounds of the
next step are therefore a part of the state of the training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reknit.worker.ring.pieces import Section

BITS = 62
"""Bits of a sum over all slots, without its sign."""
LOW = 53
"""Bits of the second integer of an f8 element: as many as a double holds exactly (see `low`)."""
HEADROOM = 6
"""A bucket may grow by 2**6 from one step to the next without being counted again. With 64 slots its largest element
then has 50 bits, and every element down to 2**-26 of it keeps all 24."""
SLACK = 16
"""A bucket whose bound is more than 2**16 times its largest element is counted again too: it would lose bits."""
MOST_SLOTS = 1 << 20
UNKNOWN = -(1 << 30)
"""Exponent of a bound that is not known, and of the largest element of a bucket that holds only zeros."""

Exponents = npt.NDArray[np.int32]
"""One exponent a bucket."""

_LARGEST = {"f4": 128, "f8": 1024}
_FINEST = {"f4": 149, "f8": 1074}
"""All numbers of the format are multiples of 2**-this: a finer unit would gain nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ruling:
    """What follows from the largest elements of a step.

    Attributes:
        bounds: exponents that the step's elements are counted with.
        again: buckets that must be counted again: the bound that was expected is not the one that holds.
        following: bounds for the next step.
    """

    bounds: Exponents
    again: npt.NDArray[np.bool_]
    following: Exponents


def unknown(buckets: Sequence[Section]) -> Exponents:
    """Bounds before the first step."""
    return np.full(len(buckets), UNKNOWN, dtype=np.int32)


def exponents(largest: npt.NDArray[np.float64]) -> Exponents:
    """Smallest e with x <= 2**e of each x >= 0; `UNKNOWN` of 0."""
    mantissa, exponent = np.frexp(largest)
    found = np.where(mantissa == 0.5, exponent - 1, exponent)
    return np.where(largest == 0, UNKNOWN, found).astype(np.int32)


def rule(buckets: Sequence[Section], expected: Exponents, seen: Exponents) -> Ruling:
    """Decide from the largest elements over all slots; the same on whoever computes it.

    Args:
        buckets: the buckets.
        expected: bounds made by the step before.
        seen: `exponents` of the largest finite element of each bucket.
    """
    zero = seen == UNKNOWN
    again = ~zero & ((seen > expected) | (seen < expected - SLACK))
    bounds = np.where(again, seen, expected).astype(np.int32)
    roof = np.array([_LARGEST[b.dtype] for b in buckets], dtype=np.int32)
    following = np.where(zero, expected, np.minimum(np.where(zero, 0, seen) + HEADROOM, roof)).astype(np.int32)
    return Ruling(bounds, again, following)


def powers(buckets: Sequence[Section], bounds: Exponents, slots: int) -> Exponents:
    """The k of each bucket: an element is counted in units of 2**-k.

    Raises:
        ValueError: more slots than the format has room for.
    """
    room = _room(slots)
    finest = np.array([_FINEST[b.dtype] for b in buckets], dtype=np.int32)
    return np.where(bounds == UNKNOWN, 0, np.minimum(BITS - room - bounds, finest)).astype(np.int32)


def low(slots: int) -> int:
    """Bits of the second integer of an f8 element: `LOW`, fewer if so many slots would overflow it."""
    return min(LOW, BITS + 1 - _room(slots))


def _room(slots: int) -> int:
    if slots > MOST_SLOTS:
        raise ValueError(f"{slots} slots are too many for an exact sum: at most {MOST_SLOTS}")
    return (slots - 1).bit_length()
