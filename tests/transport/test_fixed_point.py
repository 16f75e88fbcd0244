"""Exact sums: the bits of a plain reference for any split, order, number of workers and any floats."""

from __future__ import annotations

import math
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.worker.ring.pieces import Section, Shape
from reknit.worker.transport import buckets as cutting
from reknit.worker.transport import scale
from reknit.worker.transport.buckets import BLOCK, SMALL, lay_out
from reknit.worker.transport.fixed_point import Extent, FixedPoint
from support import exact

# small buckets side by side, an empty one, padding, doubles, and raw bytes
SHAPE = Shape((Section("f4", 0, 48), Section("f8", 48, 80), Section("raw", 80, 96)))
BUCKETS = (
    Section("f4", 0, 12),
    Section("f4", 12, 16),
    Section("f4", 16, 16),
    Section("f4", 16, 44),
    Section("f8", 48, 64),
    Section("f8", 64, 72),
    Section("f8", 72, 80),
)


def f4(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def f8(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def combine(shape, buckets, slots, expected, of, split, *, order=None):
    """What workers with `split` slots each make of a step; all of them must get the same bytes."""
    lanes = lay_out(shape, buckets)
    workers = [FixedPoint(lanes, of) for _ in split]
    shares, at = [], 0
    for count in split:
        shares.append(slots[at : at + count])
        at += count
    assert at == len(slots)
    extents = [
        w.count(own, expected, covered=len(own), raw=i == 0 and bool(own))
        for i, (w, own) in enumerate(zip(workers, shares, strict=True))
    ]
    extent = Extent(np.maximum.reduce([e.seen for e in extents]), np.maximum.reduce([e.special for e in extents]))
    ruling = scale.rule(lanes.buckets, expected, extent.seen)
    for w, own in zip(workers, shares, strict=True):
        w.count_again(own, ruling, extent.special)
    mixed = list(workers)
    (order or random.Random(0)).shuffle(mixed)
    total = sum((w.total for w in mixed[1:]), mixed[0].total.copy())
    codes = sum((w.specials(own, extent.special) for w, own in zip(workers, shares, strict=True)), np.int64(0))
    results = []
    for w in workers:
        w.total[:] = total
        result = shape.empty()
        result[:] = 0xAB
        w.write(result, ruling.bounds)
        w.write_rest(result)
        if extent.special.any():
            w.write_specials(result, extent.special, codes)
        results.append(result)
    assert total[lanes.coverage] == len(slots)
    assert all(np.array_equal(r, results[0]) for r in results[1:])
    return results[0], ruling


wild4 = st.one_of(
    st.integers(0, 2**32 - 1).map(f4),
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, f4(1), -f4(1), f4(0x7F7FFFFF), f4(0x00800000)]),
)
wild8 = st.one_of(
    st.integers(0, 2**64 - 1).map(f8),
    st.floats(),
    st.sampled_from([0.0, math.inf, -math.inf, math.nan, f8(1), -f8(1), f8(0x7FEFFFFFFFFFFFFF)]),
)


def tame(width: int) -> st.SearchStrategy[float]:
    """Numbers of one order of magnitude, with many ties and cancellations."""
    return st.one_of(
        st.integers(-(2**20), 2**20).map(lambda n: n / 1024),
        st.floats(-1, 1, width=width),
        st.sampled_from([0.0, 1.0, -1.0, 0.5, 1 + 2**-23, 2**-24]),
    )


@st.composite
def steps(draw, most=64):
    """A step: slots, a split of them over workers, and the bounds of the step before."""
    used = draw(st.integers(1, most))
    of = draw(st.integers(used, most))
    calm = draw(st.booleans())
    fours, eights = (tame(32), tame(64)) if calm else (wild4, wild8)
    # few different rows, repeated: V up to 64 without drawing hundreds of floats
    rows = draw(
        st.lists(
            st.tuples(st.lists(fours, min_size=11, max_size=11), st.lists(eights, min_size=4, max_size=4)),
            min_size=1,
            max_size=6,
        )
    )
    slots = []
    rng = draw(st.randoms(use_true_random=False))
    for number in range(used):
        a, b = rng.choice(rows)
        slot = SHAPE.empty()
        slot[:44].view(np.float32)[:] = [f4_of(x) for x in a]
        slot[44:48] = rng.randrange(256)
        slot[48:80].view(np.float64)[:] = b
        slot[80:96] = number
        slots.append(slot)
    workers = draw(st.integers(1, 8))
    cuts = sorted(draw(st.lists(st.integers(0, used), min_size=workers - 1, max_size=workers - 1)))
    split = [b - a for a, b in zip([0, *cuts], [*cuts, used], strict=True)]
    if split[0] == 0:  # whoever stands first has slot 0
        split = sorted(split, reverse=True)
    bounds = draw(st.one_of(st.none(), st.lists(st.integers(-150, 128), min_size=6, max_size=6)))
    return slots, of, split, bounds, rng


def f4_of(x: float) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(x)


@settings(deadline=None, max_examples=80)
@given(steps())
def test_the_bits_of_the_plain_reference_for_any_split(step):
    slots, of, split, bounds, rng = step
    kept = lay_out(SHAPE, BUCKETS).buckets
    expected = scale.unknown(kept) if bounds is None else np.array(bounds, dtype=np.int32)
    want, following = exact.add_up(SHAPE, kept, slots, expected.tolist(), of)
    got, ruling = combine(SHAPE, BUCKETS, slots, expected, of, split, order=rng)
    for bucket in kept:
        kind = np.float32 if bucket.dtype == "f4" else np.float64
        a, b = (x[bucket.start : bucket.end].view(kind) for x in (want, got))
        assert np.array_equal(np.isnan(a), np.isnan(b))
        assert a[~np.isnan(a)].tobytes() == b[~np.isnan(b)].tobytes(), (bucket, a, b)
    assert got[80:96].tolist() == [0] * 16, "the raw bytes are slot 0's"
    assert got[44:48].tolist() == [0] * 4, "padding is zero whatever the slots have there"
    assert ruling.following.tolist() == following


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=1), st.integers(-(2**58), 2**58), st.integers(1, 53))
def test_two_integers_become_the_nearest_double(high, lowly, low):
    from fractions import Fraction

    from reknit.worker.transport.fixed_point import _rounded

    got = _rounded(np.array(high), np.array([lowly]), low)[0]
    assert got == exact.nearest(Fraction(high[0]) + Fraction(lowly, 1 << low), np.float64)


@pytest.mark.parametrize("tie", [1, -1])
def test_a_tie_is_broken_by_the_lowest_bit_of_the_lower_part(tie):
    from fractions import Fraction

    from reknit.worker.transport.fixed_point import _rounded

    high = (1 << 60) + (1 << 7)  # exactly between two doubles
    for lowly in (0, tie, tie << 20, tie << 51):
        want = exact.nearest(Fraction(high) + Fraction(lowly, 1 << 53), np.float64)
        assert _rounded(np.array([high]), np.array([lowly]), 53)[0] == want


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 2**32 - 1), st.integers(1, 64), st.integers(1, 8))
def test_large_buckets_of_ten_decades_split_at_random(seed, used, workers):
    """Blocks of several sizes: a bucket of many blocks, a run of small ones, one that ends in a block's middle."""
    rng = np.random.default_rng(seed)
    sizes = [BLOCK + 17, 3, 5, SMALL - 1, SMALL, 1, 2 * BLOCK]
    ends = np.cumsum(sizes)
    shape = Shape((Section("f4", 0, 4 * int(ends[-1])),))
    parts = tuple(Section("f4", 4 * int(e - n), 4 * int(e)) for e, n in zip(ends, sizes, strict=True))
    few = [shape.empty() for _ in range(min(used, 3))]
    for slot in few:
        slot.view(np.float32)[:] = rng.standard_normal(ends[-1]) * 10.0 ** rng.integers(-10, 1, ends[-1])
    slots = [few[i] for i in rng.integers(0, len(few), used)]
    cuts = sorted(rng.integers(1, used + 1, workers - 1).tolist())
    split = [b - a for a, b in zip([0, *cuts], [*cuts, used], strict=True)]
    expected = scale.unknown(parts) if seed % 2 else np.full(len(parts), int(rng.integers(-20, 20)), np.int32)
    got, _ = combine(shape, parts, slots, expected, 64, split)
    alone, ruling = combine(shape, parts, slots, expected, 64, [used])
    assert np.array_equal(got, alone)
    some = rng.integers(0, ends[-1], 30)
    k = np.repeat(scale.powers(parts, ruling.bounds, 64), sizes)
    for at in some:
        counted = sum(round(float(s.view(np.float32)[at]) * 2.0 ** int(k[at])) for s in slots)
        assert float(got.view(np.float32)[at]) == float(np.float32(counted * 2.0 ** -int(k[at]))) or counted > 2**53


def test_error_against_the_float_fold():
    """What the bound of the step before costs: the error stays below that of the fold of floats (docs/ring.md)."""
    rng = np.random.default_rng(3)
    n, V = 50_000, 64
    shape = Shape((Section("f4", 0, 4 * n),))
    slots = []
    for _ in range(V):
        slot = shape.empty()
        slot.view(np.float32)[:] = rng.standard_normal(n)
        slots.append(slot)
    parts = cutting.whole_sections(shape)
    true = np.sum([s.view(np.float32).astype(np.float64) for s in slots], axis=0)
    first, ruling = combine(shape, parts, slots, scale.unknown(parts), V, [20, 30, 14])
    second, _ = combine(shape, parts, slots, ruling.following, V, [64])
    folded = slots[0].view(np.float32).copy()
    for slot in slots[1:]:
        folded += slot.view(np.float32)
    errors = [np.linalg.norm(x - true) for x in (first.view(np.float32), second.view(np.float32), folded)]
    assert errors[0] <= errors[2] / 2
    assert errors[1] <= errors[2] / 2


def test_a_bucket_that_shrinks_far_is_counted_again_too():
    shape = Shape((Section("f4", 0, 8),))
    parts = cutting.whole_sections(shape)
    slot = shape.empty()
    slot.view(np.float32)[:] = (1e-9, 1.5e-9)
    got, ruling = combine(shape, parts, [slot], np.array([20], np.int32), 1, [1])
    assert ruling.again.all()
    assert np.array_equal(got, slot)


def test_zeros_leave_the_bound_as_it_was():
    parts = (Section("f4", 0, 8),)
    ruling = scale.rule(parts, np.array([5], np.int32), np.array([scale.UNKNOWN], np.int32))
    assert ruling.following.tolist() == ruling.bounds.tolist() == [5]
    assert not ruling.again.any()


def test_more_slots_than_fit_are_refused():
    with pytest.raises(ValueError, match="at most 1048576"):
        FixedPoint(lay_out(SHAPE, BUCKETS), (1 << 20) + 1)


@pytest.mark.parametrize(
    "wrong",
    [
        (Section("raw", 80, 96),),
        (Section("f4", 0, 12), Section("f4", 8, 16)),
        (Section("f8", 0, 16),),
        (Section("f4", 44, 52),),
    ],
)
def test_buckets_that_do_not_fit_are_refused(wrong):
    with pytest.raises(ValueError, match=r"bucket|raw"):
        lay_out(SHAPE, wrong)
