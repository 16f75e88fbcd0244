"""The state striped over several teachers: one step, right bytes, whoever is late, lost, lying or standing still."""

from __future__ import annotations

import dataclasses
import gc
import mmap
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from reknit.core.events import Member
from reknit.worker import lesson as lesson_module
from reknit.worker import side
from reknit.worker.copies import StateCopy
from reknit.worker.exchange import Exchange
from reknit.worker.learning import Fetcher, Learner
from reknit.worker.parts import span, spread
from support.feeds import SECRET, Course, PretendMember, Truth, digest
from support.meddler import Meddler
from support.rings import wait_until

LARGE = 4_000_000
"""Floats of a state whose parts no socket's buffers swallow (16 MB)."""


class Learning:
    """A learner without a feed: the fetcher and where its copy goes."""

    def __init__(self, truth: Truth, name: str = "c") -> None:
        self.truth = truth
        self.shared = Exchange(name, 1, truth.shape, lambda step: 1, 1_000_000)
        self.fetcher = Fetcher("job", name, SECRET, self.shared)

    def begin(self, members: list[Member], at_least: int = 0) -> None:
        self.shared.start_learning(at_least, (), 0)
        self.fetcher.teachers(members, 1)
        self.fetcher.fetch(at_least, None)

    def wait(self, seconds: float = 30.0) -> StateCopy:
        """The copy; its bytes are those of its step."""
        try:
            wait_until(lambda: self.shared.load is not None, seconds)
        except AssertionError:
            raise AssertionError(str(self.fetcher.failures)) from None
        copy = self.shared.load
        assert copy is not None
        self.truth.until(copy.step)
        assert digest(np.frombuffer(copy.memory, np.float32)) == self.truth.digests[copy.step]
        assert copy.chain == self.truth.chains[copy.step]
        assert (copy.layout, copy.ledger) == (b"layout", b"ledger")
        return copy


@pytest.fixture
def course():
    made = Course(["m0", "m1", "m2", "m3", "m4"])
    yield made
    made.close()


@pytest.fixture
def standing():
    """A large state, three members at one step."""
    made = Course(["m0", "m1", "m2"], Truth(LARGE))
    made.advance(1)
    yield made
    made.close()


@pytest.fixture
def learning(request):
    made = Learning(request.getfixturevalue("standing" if "standing" in request.fixturenames else "course").truth)
    yield made
    made.fetcher.stop()


@pytest.fixture
def meddled(request):
    course = request.getfixturevalue("standing" if "standing" in request.fixturenames else "course")
    made = {name: Meddler(m.member) for name, m in course.members.items()}
    yield made
    for meddler in made.values():
        meddler.close()


def members(course: Course) -> list[Member]:
    return [m.member for m in course.members.values()]


def spans(course: Course) -> list[tuple[int, int, int]]:
    return sorted(copied for m in course.members.values() for copied in m.copied)


def test_four_of_five_teachers_send_a_quarter_each(course, learning):
    course.advance(3)
    learning.begin(members(course))
    assert learning.wait().step == 3
    size = learning.truth.shape.nbytes
    assert [s[1:] for s in spans(course)] == [span(size, part, 4) for part in range(4)]


@pytest.mark.parametrize("at_least", [0, 5])
def test_a_run_that_goes_on_is_copied_at_one_step_by_all(course, learning, at_least):
    course.go(0.001)
    learning.begin(members(course), at_least)
    copy = learning.wait()
    course.halt()
    assert copy.step >= at_least
    assert sum(c[0] == copy.step for c in spans(course)) == 4


def test_one_teacher_alone_sends_everything(course, learning):
    course.advance(2)
    learning.begin(members(course)[:1])
    learning.wait()
    assert spans(course) == [(2, 0, learning.truth.shape.nbytes)]


def test_a_learner_of_the_ring_learns_from_the_teachers_it_is_told(course):
    shared = Exchange("c", 1, course.truth.shape, lambda step: 1, 1_000_000)
    learner = Learner("job", "c", SECRET, shared)
    try:
        shared.start_learning(4, (), 0)
        learner.learn([course.members["m3"].member], 1, 4)
        course.advance(4)
        wait_until(lambda: shared.load is not None)
        assert shared.load.step == 4
        assert spans(course) == [(4, 0, course.truth.shape.nbytes)]
    finally:
        learner.close()


def test_the_copy_is_not_of_before_the_first_result_that_is_queued(course, learning):
    course.advance(2)
    learning.begin(members(course), at_least=4)
    course.advance(2)
    assert learning.wait().step == 4


def test_several_learners_of_one_step_are_served_by_one_copy(course):
    """The second learner hears of the step that the first has asked for."""
    several = [Learning(course.truth, f"c{n}") for n in range(3)]
    asked = members(course)[:2]
    try:
        course.advance(1)
        course._say("compute")
        for number, learning in enumerate(several, 1):
            learning.begin(asked, at_least=3)
            wait_until(lambda n=number: all(len(course.members[m].shared.copies.wanted) == n for m in ("m0", "m1")))
        (step,) = {wanted.at_least for m in course.members.values() for wanted in m.shared.copies.wanted}
        course.advance(step - 1)
        for learning in several:
            assert learning.wait().step == step
        assert [len(m.copied) for m in course.members.values()] == [1, 1, 0, 0, 0]
    finally:
        for learning in several:
            learning.fetcher.stop()


# ------------------------------------------------------------------------------------------ standing still


def test_members_that_stand_at_different_steps(course, learning):
    """A paused run: one has the last result, the others lack it."""
    course.advance(2)
    course.members["m1"].complete(2)
    course.members["m1"].wait_for(3)
    for m in course.members.values():
        m.shared.phase = "wait"
    learning.begin(members(course))
    assert learning.wait().step == 3
    assert spans(course) == [(3, 0, learning.truth.shape.nbytes)]


def test_a_run_that_stops_before_the_step_that_was_agreed_on(course, learning, monkeypatch):
    monkeypatch.setattr("reknit.worker.lesson._STALLED", 0.3)
    course.advance(2)
    for m in course.members.values():  # so that a step ahead is agreed on
        m.shared.phase = "compute"
        m.teacher._where = lambda where=m.teacher._where: dataclasses.replace(where(), seconds=0.01)
    learning.begin(members(course))
    wait_until(lambda: any(m.shared.copies.wanted for m in course.members.values()))
    assert learning.shared.load is None
    for m in course.members.values():
        m.shared.phase = "wait"
    assert learning.wait().step == 2
    assert any("no step" in failure for failure in learning.fetcher.failures)


def test_members_at_the_end_of_the_run_teach_as_well(course, learning):
    for m in course.members.values():
        m.shared.total = 3
    course.advance(3)
    learning.begin(members(course), at_least=3)
    assert learning.wait().step == 3


def test_a_member_that_learns_itself_is_no_teacher(course, learning):
    course.advance(2)
    for name in ("m0", "m1", "m2", "m3"):
        course.members[name].shared.start_learning(2, (), 0)
    learning.begin(members(course))
    assert learning.wait().step == 2
    assert {name for name, m in course.members.items() if m.copied} == {"m4"}


# ---------------------------------------------------------------------------------------------- late, lost, lying


def test_a_teacher_past_the_step_refuses_and_the_next_one_is_further_ahead(course, learning):
    late = []
    for m in course.members.values():  # each says it is where it was ten steps ago

        def where(real=m.teacher._where):
            place = real()
            if len(late) < 4:
                late.append(place)
                return dataclasses.replace(place, step=max(0, place.step - 10), seconds=1.0)
            return place

        m.teacher._where = where
    course.advance(20)
    course.go(0.001)
    learning.begin(members(course))
    copy = learning.wait()
    course.halt()
    assert any("already" in failure for failure in learning.fetcher.failures)
    assert sum(c[0] == copy.step for c in spans(course)) == 4


def test_a_teacher_that_dies_in_the_middle_of_its_part(standing, meddled, learning):
    """The run stands still: another has the same step, and sends the lost part too."""
    meddled["m1"].stop_at = 1 << 20
    learning.begin([m.member for m in meddled.values()])
    wait_until(lambda: meddled["m1"].passed == 1 << 20)
    meddled["m1"].cut()
    learning.wait()
    assert len(spans(standing)) == 4
    assert any(m.copied and len(m.copied) == 2 for m in standing.members.values())


def test_a_teacher_that_freezes_in_the_middle_of_its_part(standing, meddled, learning, monkeypatch):
    monkeypatch.setattr(side, "SILENCE", 0.7)
    meddled["m2"].stop_at = 1 << 20
    learning.begin([m.member for m in meddled.values()])
    learning.wait()
    assert meddled["m2"].passed == 1 << 20


def test_all_is_asked_again_if_nobody_has_that_step_any_more(standing, meddled, learning):
    meddled["m1"].stop_at = 1 << 20
    learning.begin([m.member for m in meddled.values()])
    wait_until(lambda: meddled["m1"].passed == 1 << 20)
    wait_until(lambda: not any(m.teacher._kept for m in standing.members.values() if m.name != "m1"))
    standing.advance(1)
    meddled["m1"].stop_at = -1
    meddled["m1"].cut()
    assert learning.wait().step == 2


def test_a_flipped_bit_in_a_part_is_found_and_the_part_sent_again(standing, meddled, learning):
    meddled["m0"].flip_at = 1 << 20
    learning.begin([m.member for m in meddled.values()])
    learning.wait()
    assert meddled["m0"].flipped
    assert len(spans(standing)) == 4


@pytest.mark.parametrize("what", ["chain", "layout", "size"])
def test_parts_of_different_states_are_thrown_away_and_asked_for_again(course, learning, what):
    def spoil(copy: StateCopy) -> StateCopy:
        if what == "chain":
            return dataclasses.replace(copy, chain=copy.chain ^ 1)
        if what == "layout":
            return dataclasses.replace(copy, layout=b"another")
        return dataclasses.replace(copy, size=copy.size - 64)

    course.advance(2)
    asked = spread(members(course), "c")[:4]
    spoiled = course.members[asked[1].worker]
    spoiled.spoil = spoil
    learning.begin(asked)
    wait_until(lambda: learning.fetcher.failures)
    assert learning.shared.load is None
    spoiled.spoil = lambda copy: copy
    learning.wait()


def test_if_teachers_go_on_to_differ_the_whole_state_is_asked_of_one(course, learning, capfd):
    """Objects of the script's own may differ from worker to worker; that must not keep a learner out."""
    course.advance(2)
    for m in course.members.values():
        m.spoil = lambda copy, m=m: dataclasses.replace(copy, layout=f"layout of {m.name}".encode())
    learning.begin(members(course))
    wait_until(lambda: learning.shared.load is not None)
    assert learning.shared.load.layout.startswith(b"layout of m")
    assert len(learning.shared.load.memory) == learning.truth.shape.nbytes
    assert "teachers' states differ" in capfd.readouterr().err


def test_a_copy_that_fails_is_the_teachers_trouble_and_another_is_asked(course, learning):
    course.advance(2)
    failed = []

    def fails(member: PretendMember) -> Callable[[int], None]:
        def copy(step: int) -> None:
            failed.append((member.name, step))
            member.shared.copies.begin(step)
            member.shared.copies.answer(None, "the copy failed: no room")

        return copy

    chosen = spread(members(course), "c")[:4]
    for teacher in chosen[:3]:
        course.members[teacher.worker]._copy = fails(course.members[teacher.worker])
    learning.begin(chosen)
    learning.wait()
    assert failed
    course.advance(1)


# ----------------------------------------------------------------------------------------------- nothing is left


def test_copies_live_as_long_as_somebody_fetches_them(course, learning):
    made: list[weakref.ref] = []
    for m in course.members.values():
        m.spoil = lambda copy: made.append(weakref.ref(copy)) or copy
    course.advance(1)
    learning.begin(members(course))
    learning.wait()
    wait_until(lambda: not any(m.teacher._lessons for m in course.members.values()))
    gc.collect()
    assert len(made) == 4
    assert not any(ref() for ref in made)


def test_the_memory_of_a_received_state_is_gone_when_it_was_loaded(course, learning, monkeypatch):
    made: list[weakref.ref] = []
    right = lesson_module.anonymous

    def anonymous(size: int) -> mmap.mmap:
        memory = right(size)
        made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(lesson_module, "anonymous", anonymous)
    course.advance(1)
    learning.begin(members(course))
    step = learning.wait().step
    learning.shared.loaded(step)
    gc.collect()
    assert len(made) == 1
    wait_until(lambda: made[0]() is None)
