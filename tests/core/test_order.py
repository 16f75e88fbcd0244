"""Sample order: every sample of an epoch once, for any size; tails; independence of who computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reknit.core.errors import UsageError
from reknit.core.order import Course, permute, slot_seed

courses = st.builds(
    Course,
    samples=st.integers(1, 120),
    micro_batch=st.integers(1, 17),
    slots=st.integers(1, 9),
    epochs=st.integers(1, 4),
    seed=st.integers(0, 2**64),
)


@given(st.integers(1, 3000), st.integers(0, 2**64), st.integers(0, 100))
@example(1, 0, 0)
@example(2, 0, 0)
@example(3, 0, 0)
@example(1024, 0, 0)
@example(1025, 7, 3)
def test_the_order_of_an_epoch_is_a_bijection(samples: int, seed: int, epoch: int) -> None:
    order = permute(np.arange(samples, dtype=np.uint64), samples, seed, epoch)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(samples))


@given(courses)
@settings(max_examples=60)
def test_every_epoch_has_every_sample_once(course: Course) -> None:
    for epoch in range(course.epochs):
        steps = [s for s in range(course.steps) if course.epoch_of(s) == epoch]
        assert len(steps) == course.steps_an_epoch
        ids = np.concatenate([course.slot_samples(s, slot) for s in steps for slot in range(course.slots)])
        assert np.array_equal(np.sort(ids), np.arange(course.samples))


@given(courses)
def test_slots_of_a_step_are_contiguous_and_only_a_tail_is_uneven(course: Course) -> None:
    for step in range(course.steps_an_epoch):
        first, end = course.span(step)
        full = end - first == course.batch
        assert full or step == course.steps_an_epoch - 1
        at, sizes = first, []
        for slot in range(course.slots):
            begin, stop = course.slot_span(step, slot)
            assert begin == at
            at = stop
            sizes.append(stop - begin)
        assert at == end
        assert max(sizes) <= course.micro_batch
        if full:
            assert set(sizes) == {course.micro_batch}
        used = [size for size in sizes if size]
        assert sizes[: len(used)] == used  # empty slots come last
        assert max(used) - min(used) <= 1
        assert len(used) == -(-(end - first) // course.micro_batch)  # as few as hold it


@given(courses, st.data())
def test_samples_of_a_slot_depend_on_nothing_else(course: Course, data: st.DataObject) -> None:
    """Looked up alone, from a course made anew: what a joiner or an heir of a slot computes."""
    step = data.draw(st.integers(0, course.steps - 1))
    slot = data.draw(st.integers(0, course.slots - 1))
    again = Course(
        samples=course.samples,
        micro_batch=course.micro_batch,
        slots=course.slots,
        epochs=course.epochs,
        seed=course.seed,
    )
    assert np.array_equal(course.slot_samples(step, slot), again.slot_samples(step, slot))


def test_epochs_and_seeds_differ_and_the_order_is_pinned() -> None:
    """The first samples of a known course: a change of the order would break every run that resumes."""
    course = Course(samples=1000, micro_batch=4, slots=2, epochs=2, seed=0)
    orders = {
        (seed, epoch): permute(np.arange(1000, dtype=np.uint64), 1000, seed, epoch).tolist()
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len({tuple(order) for order in orders.values()}) == 4
    for order in orders.values():
        in_place = sum(i == x for i, x in enumerate(order))
        assert in_place < 10
    assert course.slot_samples(0, 0).tolist() == orders[0, 0][:4] == PINNED
    assert course.slot_samples(course.steps_an_epoch, 1).tolist() == orders[0, 1][4:8]


PINNED = [406, 883, 30, 178]


def test_a_large_dataset_costs_no_table() -> None:
    course = Course(samples=10**12, micro_batch=8, slots=8, epochs=1, seed=5)
    ids = np.concatenate([course.slot_samples(10**9, slot) for slot in range(8)])
    assert len(set(ids.tolist())) == 64
    assert ids.min() >= 0
    assert ids.max() < 10**12


def test_neighbours_are_spread() -> None:
    """Not a proof of randomness: that neighbours do not stay neighbours."""
    order = permute(np.arange(10_000, dtype=np.uint64), 10_000, 0, 0)
    gaps = np.abs(np.diff(order))
    assert 2800 < gaps.mean() < 3900  # a random order: a third of the size


@given(st.integers(0, 2**63), st.integers(0, 10**6), st.integers(0, 1000))
def test_slot_seeds_are_63_bits(seed: int, step: int, slot: int) -> None:
    assert 0 <= slot_seed(seed, step, slot) < 2**63


def test_slot_seeds_differ() -> None:
    seeds = {slot_seed(s, t, v) for s in range(3) for t in range(100) for v in range(8)}
    assert len(seeds) == 3 * 100 * 8


@pytest.mark.parametrize("field", ["samples", "micro_batch", "slots", "epochs"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_course_of_nothing_is_refused_by_name(field: str, value: int) -> None:
    numbers = {"samples": 1, "micro_batch": 1, "slots": 1, "epochs": 1, "seed": 0, field: value}
    with pytest.raises(UsageError, match=rf"{field} is {value}, must be at least 1"):
        Course(**numbers)
