"""Who measures what in an evaluation, and whose scores count: without any process."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.worker.shares import Shares, cut
from reknit.worker.sheet import Sheet, difference, pack, unpack

NAMES = ["a", "b", "c", "d"]
never = lambda _member: False  # noqa: E731
always = lambda _member: True  # noqa: E731


@given(st.integers(0, 50), st.integers(1, 9))
def test_a_cut_covers_all_contiguously_and_evenly(count: int, members: int) -> None:
    shares = cut(range(count), [str(i) for i in range(members)])
    assert list(itertools.chain(*shares.values())) == list(range(count))
    sizes = [len(s) for s in shares.values()]
    assert max(sizes) - min(sizes) <= 1


@given(
    count=st.integers(0, 30),
    members=st.integers(1, 4),
    dead=st.sets(st.integers(0, 3)),
    order=st.randoms(use_true_random=False),
)
def test_all_is_measured_whoever_never_begins(count: int, members: int, dead: set[int], order: object) -> None:
    """Any interleaving of any members of whom at least one is alive measures everything, and ends."""
    names = NAMES[:members]
    alive = [n for i, n in enumerate(names) if i not in dead] or names[:1]
    shares = {n: Shares(range(count), names, n) for n in alive}
    done: set[int] = set()
    for _ in range(3 * count + 10):
        who = order.choice(alive)  # type: ignore[attr-defined]
        number = shares[who].next(done, always)
        if number is not None:
            assert number not in done
            done.add(number)
    assert done == set(range(count))


def test_own_share_first_then_from_the_back_of_the_longest() -> None:
    shares = Shares(range(9), ["a", "b", "c"], "a")
    done: set[int] = set()
    taken = []
    for _ in range(6):
        number = shares.next(done | {3}, never)
        assert number is not None
        taken.append(number)
        done.add(number)
    assert taken[:3] == [0, 1, 2]
    assert taken[3] == 7, "c has three left, b two; 8 is for the one that is nearer to c"
    assert set(taken[3:]) == {7, 5, 8}
    assert shares.next(done | {3}, never) is None, "what is left is being measured by those who have it"
    assert shares.next(done | {3}, always) in (4, 6)


def test_helpers_take_different_ones() -> None:
    """Three are done, and d has ten left: they do not all take the same."""
    firsts = []
    for name in ("a", "b", "c"):
        shares = Shares(range(10), NAMES, name)
        shares._left = {m: type(shares._own)() for m in NAMES if m != name}
        shares._left["d"].extend(range(10))
        shares._own.clear()
        firsts.append(shares.next(set(), never))
    assert len(set(firsts)) == 3


def test_who_is_no_member_only_helps() -> None:
    shares = Shares(range(4), ["a", "b"], "x")
    assert shares.next(set(), never) in (1, 3)
    assert Shares(range(1), ["a"], "x").next(set(), never) is None


SUMS = {"loss": (1.5, 2.0), "acc": (1.0, 2.0)}


def test_the_first_on_the_log_counts() -> None:
    sheet = Sheet()
    assert sheet.take("a", 1, [(0, SUMS), (1, SUMS)]) == []
    assert sheet.take("b", 1, [(1, dict(SUMS))]) == []
    (found,) = sheet.take("b", 1, [(0, {**SUMS, "loss": (1.25, 2.0)})])
    assert (found.number, found.first) == (0, "a")
    assert found.detail == "loss is 1.5 / 2.0 there, 1.25 / 2.0 here"
    assert sheet.means(2) == {"acc": 0.5, "loss": 0.75}


def test_bits_are_compared_not_values() -> None:
    assert difference({"a": (math.nan, 1.0)}, {"a": (math.nan, 1.0)}) == ""
    assert difference({"a": (0.0, 1.0)}, {"a": (-0.0, 1.0)}) != ""
    assert "only the second" in difference({}, {"a": (0.0, 1.0)})
    assert "only the first" in difference({"a": (0.0, 1.0)}, {})


def test_what_an_older_generation_measured_can_be_taken_off() -> None:
    sheet = Sheet()
    sheet.take("a", 3, [(0, SUMS)])
    sheet.take("a", 4, [(1, SUMS)])
    sheet.void(4)
    assert (0 in sheet, 1 in sheet, len(sheet), sheet.voids) == (False, True, 1, 1)


names = st.sampled_from(["loss", "acc", "é"])
numbers = st.floats(allow_nan=False)


@given(st.dictionaries(st.integers(0, 99), st.dictionaries(names, st.tuples(numbers, numbers))))
def test_scores_travel_whatever_metrics_each_micro_batch_has(measured: dict) -> None:
    assert dict(unpack(pack(measured))) == measured


def test_scores_that_do_not_fit_are_refused() -> None:
    (scores,) = pack({0: SUMS})
    import msgspec

    with pytest.raises(ValueError, match="2 scores for 2 micro-batches"):
        unpack([msgspec.structs.replace(scores, numbers=(0, 1))])
    with pytest.raises(ValueError, match="zip"):
        unpack([msgspec.structs.replace(scores, weights=(1.0,))])
