"""Candidates that follow a run over real sockets: no gap, right weights, whatever breaks."""

from __future__ import annotations

import pytest

from support.feeds import Course
from support.rings import wait_until


@pytest.fixture
def course():
    made = Course(["m0", "m1", "m2"])
    yield made
    made.close()


def test_a_candidate_catches_up_with_a_run_that_goes_on(course):
    course.go(0.001)
    c = course.candidate()
    wait_until(lambda: course.step > 5)
    course.follow(c)
    wait_until(lambda: c.loads)
    wait_until(lambda: len(c.applied) > 20)
    course.halt()
    course.caught_up(c)
    assert c.fed == list(range(c.fed[0], course.step))
    assert len(c.loads) == 1, c.failures
    assert c.applied == list(range(c.loads[0], course.step))


def test_the_state_comes_from_all_teachers_each_a_part_of_one_step(course):
    course.advance(3)
    c = course.candidate()
    course.follow(c)
    wait_until(lambda: c.loads)
    assert c.loads == [3]
    spans = sorted(span[1:] for m in course.members.values() for span in m.copied)
    assert len(spans) == 3
    assert spans[0][0] == 0
    assert spans[-1][1] == 4 * course.truth.floats
    assert all(a[1] == b[0] and a[1] % 64 == 0 for a, b in zip(spans, spans[1:], strict=False))


def test_the_feed_ends_when_the_candidate_is_a_member(course):
    course.go(0.001)
    c = course.candidate()
    course.follow(c)
    wait_until(lambda: len(c.applied) > 5)
    course.halt()
    course.generation += 1
    from reknit.core.events import Member
    me = Member(worker="c", incarnation=1, node="c", pid=0, address="127.0.0.1:1")
    for m in course.members.values():
        m.feeder.serving(course.world(me))
    assert c.candidate.wait_end(course.generation, lambda: False)
    assert c.shared.step == course.step
    assert c.fed[-1] == course.step - 1
    wait_until(lambda: not any(m.feeder.fed for m in course.members.values()))
