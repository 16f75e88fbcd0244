"""Candidates over real sockets: they catch up with the run's bits, whoever is lost on the way; nothing is left over."""

from __future__ import annotations

import gc
import socket
import threading
from pathlib import Path

import psutil
import pytest

from reknit.core.events import Member
from reknit.worker import side
from reknit.worker.backlog import Limit
from support.feeds import Course, PretendMember, Truth
from support.meddler import Meddler
from support.rings import wait_until


@pytest.fixture
def course():
    made = Course(["m0", "m1", "m2"])
    yield made
    made.close()


@pytest.fixture
def meddled(course):
    """The members behind spoiling proxies, by name."""
    made = {name: Meddler(m.member) for name, m in course.members.items()}
    yield made
    for meddler in made.values():
        meddler.close()


def test_a_candidate_catches_up_with_a_run_that_goes_on(course):
    course.go(0.001)
    c = course.candidate()
    wait_until(lambda: course.step > 5)
    course.follow(c)
    wait_until(lambda: len(c.applied) > 20)
    course.halt()
    course.caught_up(c)
    assert c.fed == list(range(c.fed[0], course.step))
    assert len(c.loads) == 1, c.failures
    assert c.applied == list(range(c.loads[0], course.step))


def test_many_candidates_at_once_all_catch_up_and_share_the_load(course):
    course.go(0.001)
    several = [course.candidate(f"c{n}") for n in range(6)]
    for c in several:
        course.follow(c)
    for c in several:
        wait_until(lambda c=c: len(c.applied) > 20 or c.error)
    course.halt()
    for c in several:
        course.caught_up(c)
        assert c.error is None
    assert len({c.candidate.feeder for c in several}) > 1


def test_a_run_that_stands_still_is_joined_as_well(course):
    course.advance(3)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    assert c.loads == [3]
    course.advance(2)
    course.caught_up(c)
    assert c.applied == [3, 4]


def test_a_worker_that_still_has_the_newest_result_needs_no_copy(course):
    course.advance(5)
    c = course.candidate()
    c.weights = course.members["m0"].weights
    with c.shared.cv:
        c.shared.step, c.shared.chain, c.shared.current = 5, course.truth.chains[5], True
        c.shared.ready_at = 5
    course.follow(c, held=4)
    wait_until(lambda: c.candidate.feeder)
    course.advance(4)
    course.caught_up(c)
    assert c.loads == []
    assert c.applied == [5, 6, 7, 8]


def test_a_fresh_worker_of_a_fresh_run_needs_no_copy(course):
    c = course.candidate()
    c.weights = course.truth.fresh()
    with c.shared.cv:
        c.shared.current = True
    course.follow(c, held=-1)
    wait_until(lambda: c.candidate.feeder)
    course.advance(4)
    course.caught_up(c)
    assert c.applied == [0, 1, 2, 3]
    assert c.candidate.begun == 0


def test_results_may_wait_for_a_script_that_goes_on_after_its_last_one(course):
    course.advance(5)
    c = course.candidate()
    c.candidate._given_limit = None  # as the free memory allows
    c.weights = course.members["m0"].weights
    with c.shared.cv:
        c.shared.step, c.shared.chain, c.shared.current = 5, course.truth.chains[5], True
        c.shared.ready_at = 5
    c.gate.clear()
    course.follow(c, held=4)
    wait_until(lambda: c.candidate.feeder)
    course.advance(8)
    wait_until(lambda: len(c.fed) == 8)
    c.gate.set()
    course.caught_up(c)
    assert c.candidate.begun == 0, c.failures


@pytest.mark.parametrize("chain", ["right", "wrong"])
def test_a_worker_whose_last_result_is_gone_or_not_the_runs_begins_anew(course, chain):
    course.advance(5)
    c = course.candidate()
    with c.shared.cv:
        c.shared.step, c.shared.chain = (3, course.truth.chains[3]) if chain == "right" else (5, 1234)
    course.follow(c, held=c.shared.step - 1)
    course.caught_up(c)
    assert c.loads == [5]
    assert c.candidate.begun == 1


# --------------------------------------------------------------------------------------------- who breaks off


def test_when_the_feeder_is_lost_another_goes_on_after_the_last_result(course):
    course.advance(2)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    first = c.candidate.feeder
    course.members.pop(first).close()
    wait_until(lambda: c.candidate.feeder not in {"", first})
    course.advance(5)
    course.caught_up(c)
    assert c.loads == [2]
    assert c.fed == [2, 3, 4, 5, 6]


def test_a_new_world_without_the_feeder_moves_the_feed(course):
    course.advance(2)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    gone = course.members.pop(c.candidate.feeder)
    course.generation += 1
    course.follow(c)
    wait_until(lambda: c.candidate.feeder not in {"", gone.name})
    course.advance(3)
    course.caught_up(c)
    gone.close()
    assert c.loads == [2]


def test_a_feeder_that_dies_in_the_middle_of_a_result(course, meddled):
    course.advance(2)
    c = course.candidate()
    c.candidate.follow([m.member for m in meddled.values()], 1, None)
    course.caught_up(c)
    first = c.candidate.feeder
    feeder = meddled[first]
    course.go(0.0005)
    wait_until(lambda: len(c.fed) > 5)
    feeder.cut()
    feeder.close()
    wait_until(lambda: c.candidate.feeder not in {"", first})
    so_far = len(c.fed)
    wait_until(lambda: len(c.fed) > so_far + 5)
    course.halt()
    course.caught_up(c)


@pytest.mark.parametrize("at", [600, 30_000])
def test_a_frozen_feeder_is_left(course, meddled, monkeypatch, at):
    """It stops in the middle of a message, of a result, or between two, and its connection stays open."""
    monkeypatch.setattr(side, "SILENCE", 0.7)
    c = course.candidate()
    c.candidate.follow([m.member for m in meddled.values()], 1, None)
    course.caught_up(c)
    first = c.candidate.feeder
    meddled[first].stop_at = at
    course.advance(4)
    wait_until(lambda: c.candidate.feeder not in {"", first})
    course.advance(4)
    course.caught_up(c)


def test_a_bit_that_flips_on_the_way_is_never_applied(course, meddled):
    c = course.candidate()
    course.advance(1)
    c.candidate.follow([m.member for m in meddled.values()], 1, None)
    course.caught_up(c)
    feeder = meddled[c.candidate.feeder]
    feeder.flip_at = feeder.passed + 10_000
    course.advance(4)
    course.caught_up(c)
    assert feeder.flipped
    assert any("does not fit the result chain" in failure for failure in c.failures)
    assert c.error is None


def test_results_of_a_diverged_feeder_are_left_with_it(course):
    """Its own chain fits its results; the state that the others give does not."""
    wrong = Truth()
    wrong._base = wrong._base * 2
    odd = PretendMember("odd", wrong)
    course.advance(3)
    for step in range(3):
        odd.complete(step)
    c = course.candidate("c")
    fetch = c.candidate._fetcher
    right = fetch.teachers
    fetch.teachers = lambda members, generation: right([m.member for m in course.members.values()], generation)
    try:
        c.candidate.follow([odd.member], 1, None)
        wait_until(lambda: any("result chain" in failure for failure in c.failures))
        assert not c.loads
        course.follow(c)
        course.caught_up(c)
    finally:
        odd.close()
    assert c.loads == [3]


def test_weights_that_turn_out_not_to_be_the_runs_are_replaced(course):
    course.advance(2)
    c = course.candidate()
    course.follow(c)
    course.caught_up(c)
    c.candidate.note_unfit()
    wait_until(lambda: c.loads == [2, 2])
    gone = [course.members.pop(name) for name in list(course.members)]  # while nobody feeds it
    for member in gone:
        member.close()
    wait_until(lambda: not c.candidate.feeder)
    c.candidate.note_unfit()
    course.join("m9")
    course.generation += 1
    course.follow(c)
    wait_until(lambda: c.loads == [2, 2, 2])


# ------------------------------------------------------------------------------------------- who is too slow


def test_a_candidate_that_is_slower_than_the_run_begins_anew_later_and_later_and_says_so(course, capfd):
    size = course.truth.shape.nbytes
    c = course.candidate(pace=0.05, limit=Limit(300 * size))
    course.go(0.002)
    course.follow(c)
    wait_until(lambda: c.candidate.begun >= 3, 60)
    told = capfd.readouterr().err
    assert "cannot keep up with the run" in told
    assert "applying them is slower than the run" in told
    assert len(c.candidate._trouble) >= 2
    c.pace = 0.0
    course.halt()
    course.caught_up(c)
    gc.collect()
    with c.shared.cv:
        assert len(c.shared.results) <= 302


def test_a_state_that_does_not_come_in_time_is_asked_for_anew(course, meddled):
    size = course.truth.shape.nbytes
    c = course.candidate(limit=Limit(10 * size))
    course.advance(1)
    fetch = c.candidate._fetcher
    for meddler in meddled.values():
        meddler.stop_at = 2000  # no part of the state comes through
    right = fetch.teachers
    fetch.teachers = lambda members, generation: right([m.member for m in meddled.values()], generation)
    course.follow(c)
    course.go(0.002)
    wait_until(lambda: c.candidate.begun >= 2)
    course.halt()
    assert any("the state is not here yet" in failure for failure in c.failures)
    fetch.teachers = right
    course.follow(c)
    course.caught_up(c)


# ---------------------------------------------------------------------------------------------------- stopping


def stopped_at_once(candidate) -> None:
    thread = threading.Thread(target=candidate.candidate.stop)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_stop_while_members_are_deaf_dead_or_silent(course):
    deaf = socket.create_server(("127.0.0.1", 0))  # the kernel accepts, nobody answers
    full = socket.create_server(("127.0.0.1", 0), backlog=1)
    fillers = []
    for _ in range(4):  # its backlog is full: connecting hangs
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(full.getsockname())
        fillers.append(sock)
    for server in (deaf, full):
        c = course.candidate(f"c{server.fileno()}")
        address = f"127.0.0.1:{server.getsockname()[1]}"
        c.candidate.follow([Member(worker="x", incarnation=1, node="x", pid=0, address=address)], 1, None)
        wait_until(lambda c=c: c.candidate._sock is not None)
        stopped_at_once(c)
    for sock in (deaf, full, *fillers):
        sock.close()


def test_stop_while_the_state_is_being_waited_for_and_begin_again(course, meddled):
    course.advance(2)
    c = course.candidate()
    for meddler in meddled.values():
        meddler.stop_at = 1500
    c.candidate.follow([m.member for m in meddled.values()], 1, None)
    wait_until(lambda: c.candidate._fetcher._lesson is not None)
    stopped_at_once(c)
    assert not any(t.name in {"candidate", "ring-learn", "learn-part"} for t in threading.enumerate())
    course.follow(c)
    course.caught_up(c)


@pytest.mark.parametrize("several", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_candidates_in_a_row_leave_no_residue(course, monkeypatch, several):
    monkeypatch.setattr(side, "ALIVE", 0.02)
    process = psutil.Process()
    course.go(0.002)
    counts = []
    for number in range(several):
        c = course.candidate(f"c{number}")
        course.follow(c)
        if number % 4:
            wait_until(lambda c=c: len(c.applied) > 3 or c.error)
        c.close()
        assert c.error is None
        course.candidates.remove(c)
        wait_until(lambda: not any(m.feeder.fed or m.teacher._lessons for m in course.members.values()))
        if number >= several // 3:
            gc.collect()
            fds = len(list(Path("/proc/self/fd").iterdir()))
            counts.append((fds, threading.active_count(), process.memory_info().rss))
    first, last = counts[: len(counts) // 2], counts[len(counts) // 2 :]
    assert max(f for f, _, _ in last) <= max(f for f, _, _ in first) + 2
    assert max(t for _, t, _ in last) <= max(t for _, t, _ in first) + 2
    assert max(m for _, _, m in last) <= max(m for _, _, m in first) + (8 << 20)


def test_nothing_waits_for_candidates_that_nobody_feeds(course):
    """`committed` without a feed is a look at an empty list: no lock is taken."""
    member = course.members["m0"]
    result = object()
    with member.shared.cv:
        done = []
        thread = threading.Thread(target=lambda: done.append(member.feeder.committed(result)))
        thread.start()
        thread.join(10)
        assert done
