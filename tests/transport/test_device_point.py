"""The GPU's arithmetic, on the processor, against the host's: the same bits; on a GPU too where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.worker.ring.pieces import Section, Shape
from reknit.worker.transport import scale
from reknit.worker.transport.buckets import lay_out
from reknit.worker.transport.device_point import DevicePoint
from reknit.worker.transport.fixed_point import Extent
from reknit.worker.transport.point import HostPoint

SIZES4, SIZES8 = [300, 1, 7, 1100, 2, 40], [3, 600, 1, 1, 1]

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: the same code ran on the CPU"),
    ),
]


def layout() -> tuple[Shape, list[Section]]:
    buckets, at = [], 0
    for n in SIZES4:
        buckets.append(Section("f4", at, at + 4 * n))
        at += 4 * n
    end4 = at + at % 8 + 8  # padding that belongs to nobody
    at = end4
    for n in SIZES8:
        buckets.append(Section("f8", at, at + 8 * n))
        at += 8 * n
    shape = Shape((Section("f4", 0, end4), Section("f8", end4, at), Section("raw", at, at + 24)))
    return shape, buckets


def slots_of(shape: Shape, seed: int, count: int, wild: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        slot = rng.integers(0, 256, shape.nbytes, dtype=np.uint8)  # every bit pattern: NaN, infinities, denormals
        if not wild:
            four, eight, _ = shape.sections
            n4, n8 = (four.end - four.start) // 4, (eight.end - eight.start) // 8
            slot[four.start : four.end].view(np.float32)[:] = rng.standard_normal(n4) * 10.0 ** rng.integers(-8, 4, n4)
            slot[eight.start : eight.end].view(np.float64)[:] = rng.standard_normal(n8) * 10.0 ** rng.integers(
                -30, 4, n8
            )
        made.append(slot)
    return made


def result_of(points, shape, shares, expected, slots):
    extents = [
        p.count(own, expected, covered=len(own), raw=i == 0)
        for i, (p, own) in enumerate(zip(points, shares, strict=True))
    ]
    extent = Extent(np.maximum.reduce([e.seen for e in extents]), np.maximum.reduce([e.special for e in extents]))
    ruling = scale.rule(points[0].lanes.buckets, expected, extent.seen)
    for p, own in zip(points, shares, strict=True):
        p.count_again(own, ruling, extent.special)
    codes = sum(p.codes(own, extent.special) for p, own in zip(points, shares, strict=True))
    total = sum(p.integers for p in points)
    results = []
    for p in points:
        p.integers.copy_(total)
        result = shape.empty()
        result[:] = 0xCD
        p.write(result, ruling.bounds, 0, len(p.lanes.blocks))
        p.write_rest(result, extent.special, codes)
        assert p.covered() == slots
        results.append(result)
    assert all(np.array_equal(r, results[0]) for r in results)
    return results[0], ruling.following


def same(a: np.ndarray, b: np.ndarray, buckets) -> bool:
    """Equal bytes, but for the sign and payload of a NaN."""
    for bucket in buckets:
        kind = np.float32 if bucket.dtype == "f4" else np.float64
        x, y = (v[bucket.start : bucket.end].view(kind) for v in (a, b))
        if not np.array_equal(np.isnan(x), np.isnan(y)) or x[~np.isnan(x)].tobytes() != y[~np.isnan(y)].tobytes():
            return False
    return True


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None, max_examples=8)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.booleans(), st.booleans(), st.sampled_from([1 << 22, 512]))
def test_the_same_bits_as_on_the_host(device, seed, count, wild, known, block):
    shape, buckets = layout()
    slots = slots_of(shape, seed, count, wild)
    cut = seed % (count - 1) + 1
    shares = [slots[:cut], slots[cut:], []]
    kept = lay_out(shape, buckets).buckets
    expected = np.full(len(kept), 20, np.int32) if known else scale.unknown(kept)
    host = [HostPoint(lay_out(shape, buckets), 16) for _ in shares]
    gpu = [DevicePoint(lay_out(shape, buckets, block, block), 16, torch.device(device)) for _ in shares]
    wanted, following = result_of(host, shape, shares, expected, count)
    with gpu[0].at_work():
        got, ours = result_of(gpu, shape, shares, expected, count)
    assert following.tolist() == ours.tolist()
    assert same(wanted, got, buckets)
    raw = shape.sections[-1]
    assert np.array_equal(wanted[raw.start :], got[raw.start :])
    assert np.array_equal(wanted[raw.start :], slots[0][raw.start :])
