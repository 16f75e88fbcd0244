"""Splitting slots among workers: contiguous, covering, near to the weights."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reknit.core.errors import UsageError
from reknit.core.events import Range
from reknit.core.plan import covers, split

workers = st.integers(1, 20).map(lambda n: [f"w{k}" for k in range(n)])


@st.composite
def weighted(draw: st.DrawFn) -> tuple[int, list[str], list[float]]:
    names = draw(workers)
    weights = draw(st.lists(st.just(0.0) | st.floats(1e-3, 1e3), min_size=len(names), max_size=len(names)).filter(any))
    return draw(st.integers(0, 200)), names, weights


@given(weighted())
def test_ranges_are_contiguous_in_the_order_given_and_cover_all(case: tuple[int, list[str], list[float]]) -> None:
    slots, names, weights = case
    ranges = split(slots, names, weights)
    assert [r.worker for r in ranges] == names
    assert covers(ranges, slots)
    assert sum(r.end - r.first for r in ranges) == slots


@given(weighted())
def test_sizes_are_near_to_the_weights(case: tuple[int, list[str], list[float]]) -> None:
    """Within one slot of the exact share, unless somebody's minimum of one slot had to be paid by others."""
    slots, names, weights = case
    ranges = split(slots, names, weights)
    shares = [slots * weight / sum(weights) for weight in weights]
    paid = sum(max(1 - share, 0) for share, weight in zip(shares, weights, strict=True) if weight)
    for r, share, weight in zip(ranges, shares, weights, strict=True):
        size = r.end - r.first
        if weight == 0:
            assert size == 0
        elif slots >= sum(w > 0 for w in weights):
            assert size >= 1
            assert size <= max(share, 0) + 1
            assert size >= share - 1 - paid


@given(st.integers(0, 200), workers)
def test_without_weights_sizes_differ_by_one_at_most_and_the_first_get_more(slots: int, names: list[str]) -> None:
    sizes = [r.end - r.first for r in split(slots, names)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert split(slots, names) == split(slots, names, [1.0] * len(names))


@given(weighted(), st.floats(1e-3, 1e3))
def test_only_the_ratio_of_weights_counts(case: tuple[int, list[str], list[float]], factor: float) -> None:
    slots, names, weights = case
    powers = [2.0 ** round(w).bit_length() if w else 0.0 for w in weights]  # exact under scaling by powers of two
    assume(any(powers))
    assert split(slots, names, powers) == split(slots, names, [8 * w for w in powers])


def test_examples() -> None:
    assert [(r.first, r.end) for r in split(8, ["a", "b", "c"])] == [(0, 3), (3, 6), (6, 8)]
    assert [(r.first, r.end) for r in split(2, ["a", "b", "c"])] == [(0, 1), (1, 2), (2, 2)]
    assert [(r.first, r.end) for r in split(8, ["a", "b"], [3.0, 1.0])] == [(0, 6), (6, 8)]
    assert [(r.first, r.end) for r in split(8, ["a", "b"], [1000.0, 1.0])] == [(0, 7), (7, 8)]
    assert [(r.first, r.end) for r in split(4, ["a", "b", "c"], [1.0, 0.0, 1.0])] == [(0, 2), (2, 2), (2, 4)]


@pytest.mark.parametrize("weights", [[], [1.0], [0.0, 0.0], [1.0, -1.0], [1.0, 1.0, 1.0]])
def test_weights_that_do_not_fit(weights: list[float]) -> None:
    with pytest.raises(UsageError):
        split(4, ["a", "b"], weights)


def test_nobody() -> None:
    with pytest.raises(UsageError, match="at least one worker"):
        split(4, [])


@pytest.mark.parametrize(
    ("ranges", "true"),
    [
        ([], False),
        ([(0, 4)], True),
        ([(0, 2), (2, 4)], True),
        ([(0, 2), (2, 2), (2, 4)], True),
        ([(0, 2), (3, 4)], False),
        ([(0, 3), (2, 4)], False),
        ([(1, 4)], False),
        ([(0, 3)], False),
        ([(0, 5)], False),
        ([(2, 4), (0, 2)], False),
        ([(0, 3), (3, 2), (2, 4)], False),
    ],
)
def test_covers(ranges: list[tuple[int, int]], true: bool) -> None:
    assert covers([Range(worker="w", first=first, end=end) for first, end in ranges], 4) is true
    assert covers([], 0)
