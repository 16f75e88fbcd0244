"""Teachers: whoever asks and goes away, asks nonsense, or asks for what cannot be had, costs nothing."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from reknit.worker import side
from reknit.worker.copies import CopyWanted, StateCopy
from reknit.worker.exchange import Exchange
from reknit.worker.ring.hello import Hello
from support.feeds import SECRET, Course
from support.rings import wait_until


@pytest.fixture
def course():
    made = Course(["m0"])
    yield made
    made.close()


def test_a_learner_that_goes_away_while_it_waits_is_not_copied_for(course):
    course.advance(1)
    member = course.members["m0"]
    greeting = Hello("job", "state", 1, "c", 1, "m0")
    with side.dial(member.member, greeting, SECRET, given_up=lambda: False, made=lambda _sock: None) as sock:
        side.send(sock, {"teachers": 1})
        assert side.receive(sock)["step"] == 1
        side.send(sock, {"step": 5, "exact": True, "part": 0, "parts": 1})
        wait_until(lambda: member.shared.copies.wanted)
    wait_until(lambda: not member.shared.copies.wanted)
    course.advance(6)
    assert member.copied == []


def test_a_teacher_that_is_closed_ends_its_lessons(course):
    course.advance(1)
    member = course.members["m0"]
    greeting = Hello("job", "state", 1, "c", 1, "m0")
    with side.dial(member.member, greeting, SECRET, given_up=lambda: False, made=lambda _sock: None) as sock:
        side.send(sock, {"teachers": 1})
        side.receive(sock)
        side.send(sock, {"step": 5, "exact": True, "part": 0, "parts": 1})
        wait_until(lambda: member.shared.copies.wanted)
        thread = threading.Thread(target=member.close)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        del course.members["m0"]
    assert not member.shared.copies.wanted


@pytest.mark.parametrize(
    "ask",
    [
        {"step": 1, "exact": True, "part": 4, "parts": 4},
        {"step": 1, "exact": True, "part": 0, "parts": 0},
        {"step": "x", "exact": True, "part": 0, "parts": 1},
        {},
    ],
)
def test_a_question_that_does_not_fit_ends_the_lesson(course, ask):
    course.advance(1)
    greeting = Hello("job", "state", 1, "c", 1, "m0")
    member = course.members["m0"].member
    with side.dial(member, greeting, SECRET, given_up=lambda: False, made=lambda _sock: None) as sock:
        side.send(sock, {"teachers": 1})
        side.receive(sock)
        side.send(sock, ask)
        with pytest.raises(side.Broken):
            side.receive(sock)
    assert course.members["m0"].shared.copies.wanted == []


def test_a_copy_that_was_void_while_it_was_loaded_is_not_what_the_run_goes_on_with(course):
    shared = Exchange("c", 1, course.truth.shape, lambda step: 1, 1_000_000)
    shared.start_learning(3, (), 0)
    first = StateCopy(3, 0, b"", memoryview(b""), b"")
    assert shared.take_in(first)
    shared.start_learning(7, (), 0)  # while the script loads the first
    assert not shared.take_in(first)
    second = dataclasses.replace(first, step=8)
    assert shared.take_in(second)
    shared.loaded(3)
    assert shared.learning
    assert shared.load is second
    shared.loaded(8)
    assert not shared.learning
    assert shared.main_step == 8


def test_a_wanted_copy_is_due_at_its_step_only():
    assert CopyWanted(4, True).due(4)
    assert not CopyWanted(4, True).due(5)
    assert CopyWanted(4, False).due(5)
    assert not CopyWanted(4, False).due(3)
    assert not CopyWanted(4, True, begun=True).due(4)
