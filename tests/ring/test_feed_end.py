"""The end of a feed: a candidate that a world takes in has every result before that world, or knows that it has not."""

from __future__ import annotations

import threading

import pytest

from support.feeds import Course
from support.rings import wait_until


@pytest.fixture
def course():
    made = Course(["m0", "m1", "m2"])
    yield made
    made.close()


def test_the_feed_ends_when_the_candidate_is_a_member(course):
    course.go(0.001)
    c = course.candidate()
    course.follow(c)
    wait_until(lambda: len(c.applied) > 5)
    course.halt()
    course.world_with(c)
    assert course.ended(c)
    assert c.shared.step == course.step
    assert c.fed[-1] == course.step - 1
    wait_until(lambda: not any(m.feeder.fed for m in course.members.values()))


def test_the_end_is_waited_for_until_the_members_serve_that_world_or_the_world_moves(course):
    course.advance(2)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    came = []
    moved = threading.Event()
    waiting = threading.Thread(target=lambda: came.append(course.ended(c, 2, moved.is_set)))
    waiting.start()
    course.advance(1)
    course.caught_up(c)
    assert not came
    moved.set()
    waiting.join(10)
    assert came == [False]
    course.world_with(c)
    assert course.ended(c)
    assert c.shared.step == 3


def test_a_world_with_it_that_is_followed_by_another_one_with_it(course):
    """The feed has ended for the first; the engine hears of the second before it has linked into the first."""
    course.advance(2)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    course.world_with(c)
    wait_until(lambda: not any(m.feeder.fed for m in course.members.values()))
    course.advance(1)
    course.world_with(c)
    assert course.ended(c, 3), c.failures
    assert c.shared.step == 3


def test_the_rest_comes_from_another_member_if_the_feeder_dies_before_the_end(course):
    course.advance(2)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    course.members.pop(c.candidate.feeder).close()
    course.advance(1)
    course.world_with(c)
    assert course.ended(c), c.failures
    assert c.shared.step == 3


def test_without_anybody_who_has_the_rest_the_wait_ends_too(course):
    course.advance(2)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    gone = [m.member for m in course.members.values()]
    for name in list(course.members):
        course.members.pop(name).close()
    assert not c.candidate.wait_end(gone, 2, lambda: False)
    assert not c.candidate.wait_end([], 3, lambda: False)


def test_a_feeder_that_is_not_in_the_world_is_left_for_one_that_is(course):
    """It was taken for dead, and knows nothing of the world that goes on without it."""
    course.advance(2)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    first = course.members.pop(c.candidate.feeder)
    course.advance(1)
    course.world_with(c)
    assert course.ended(c), c.failures
    assert c.shared.step == 3
    first.close()


def test_after_the_end_a_newer_world_without_it_is_followed_on(course):
    course.advance(2)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    course.world_with(c)
    assert course.ended(c)
    course.generation += 1
    for member in course.members.values():
        member.feeder.serving(course.world())
    course.follow(c)
    wait_until(lambda: c.candidate.feeder)
    course.advance(3)
    course.caught_up(c)
    assert c.loads == [2]
