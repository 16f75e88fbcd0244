"""Feeds over real sockets: no gap, no wrong bit, and whoever reads slowly, badly or not at all delays nobody."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import weakref

import pytest

from reknit.core.events import Member
from reknit.worker import feed as feed_module
from reknit.worker import side
from reknit.worker.backlog import Limit
from reknit.worker.ring import resend
from reknit.worker.ring.hello import Hello
from reknit.worker.work import Result
from support.feeds import SECRET, Course, Truth
from support.rings import wait_until

BIG = 500_000
"""Floats of a result that no socket's buffers swallow when some of them wait (2 MB)."""


@pytest.fixture
def course():
    made = Course(["m0", "m1", "m2"])
    yield made
    made.close()


@pytest.fixture
def big():
    made = Course(["m0"], Truth(BIG), limit=Limit(8 << 20))
    yield made
    made.close()


def call(member: Member, worker: str = "c", purpose: str = "feed", generation: int = 1) -> socket.socket:
    greeting = Hello("job", purpose, generation, worker, 1, member.worker)
    return side.dial(member, greeting, SECRET, given_up=lambda: False, made=lambda _sock: None)


def begin(member: Member, after: int | None = None) -> tuple[socket.socket, dict]:
    sock = call(member)
    side.send(sock, {"after": after})
    return sock, side.receive(sock)


def next_message(sock: socket.socket) -> dict:
    while "alive" in (message := side.receive(sock)):
        pass
    return message


def next_result(sock: socket.socket) -> tuple[resend.Committed, bytearray]:
    message = next_message(sock)
    data = bytearray(message["bytes"])
    side.receive_into(sock, memoryview(data))
    return resend.unpack(message["result"]), data


class Living:
    """Which result buffers are still alive: a leak of one is a leak of a gradient's size."""

    def __init__(self, member) -> None:
        self._all: list[weakref.ref] = []
        self._results: list[Result] = []
        right = member.feeder.committed

        def committed(result: Result) -> None:
            if not any(ref() is result.buffer for ref in self._all):
                self._all.append(weakref.ref(result.buffer))
            self._results.append(result)
            right(result)

        member.feeder.committed = committed

    @property
    def held(self) -> int:
        return sum(result.holds for result in self._results)

    @property
    def buffers(self) -> int:
        """Alive, if this object lets go of them."""
        self._results.clear()
        gc.collect()
        return sum(ref() is not None for ref in self._all)


def test_every_result_comes_from_the_next_one_on(course):
    course.advance(2)
    sock, answer = begin(course.members["m0"].member)
    with sock:
        assert answer == {"from": 2, "chain": course.truth.chains[2]}
        course.advance(3)
        for step in (2, 3, 4):
            committed, data = next_result(sock)
            assert committed == course.truth.committed(step)
            assert bytes(data) == course.truth.result(step).tobytes()
        assert side.receive(sock) == {"alive": 4}


@pytest.mark.parametrize(("after", "first"), [(9, 10), (8, 9), (7, 10), (-1, 10), (12, 10), (-(10**15), 10)])
def test_a_feed_goes_on_after_a_result_as_long_as_the_ones_since_are_held(course, after, first):
    course.advance(10)
    sock, answer = begin(course.members["m0"].member, after)
    with sock:
        assert answer == {"from": first, "chain": course.truth.chains[first]}
        course.advance(1)
        assert [next_result(sock)[0].step for _ in range(first, 11)] == list(range(first, 11))


def test_a_feed_ends_after_the_last_result_before_the_world_that_has_its_worker(course):
    course.advance(3)
    member = course.members["m0"]
    sock, _ = begin(member.member)
    course.advance(2)
    course.generation = 7
    me = Member(worker="c", incarnation=1, node="c", pid=0, address="127.0.0.1:1")
    older = Member(worker="c", incarnation=0, node="c", pid=0, address="127.0.0.1:1")
    member.feeder.serving(course.world(older))  # an earlier life of it: not who is being fed
    member.feeder.serving(course.world(me))
    course.advance(1)
    with sock:
        assert [next_result(sock)[0].step for _ in range(2)] == [3, 4]
        assert next_message(sock) == {"end": 4, "generation": 7}
    wait_until(lambda: not member.feeder.fed)
    sock, answer = begin(member.member, 4)  # a member that has lost its feeder before the end asks another
    with sock:
        assert answer["from"] == 5
        assert next_result(sock)[0].step == 5
        assert next_message(sock) == {"end": 5, "generation": 7}


def test_a_member_without_the_state_feeds_nobody(course):
    course.members["m0"].shared.start_learning(0, (), 0)
    with call(course.members["m0"].member) as sock:
        side.send(sock, {"after": None})
        with pytest.raises(side.Broken):
            side.receive(sock)


def test_a_member_that_learns_anew_cuts_its_feeds_off(course):
    course.advance(3)
    member = course.members["m0"]
    sock, _ = begin(member.member)
    with sock:
        course.truth.until(5)
        member.shared.start_learning(5, (), course.truth.chains[5])
        result = Result(member.shared.pool.take(), course.truth.committed(5))
        member.shared.complete(result)
        member.feeder.committed(result)
        assert next_message(sock) == {"cut": "results do not follow each other: 5 after 2"}


# ------------------------------------------------------------------------------------- who reads slowly or badly


def test_one_that_never_reads_delays_nothing_is_cut_off_and_its_memory_comes_back(big, monkeypatch):
    monkeypatch.setattr(side, "SILENCE", 0.5)
    member = big.members["m0"]
    living = Living(member)
    sock, _ = begin(member.member)
    with sock:
        big.advance(30)  # would never return if a commit waited for the candidate
        assert member.shared.step == 30
        assert living.held <= 1  # the one that is being sent, as long as it may take
        wait_until(lambda: not member.feeder.fed, 60)
    assert living.held == 0
    big.advance(3)
    assert living.buffers <= 6


def test_one_that_reads_a_byte_at_a_time_is_cut_off_too(big, monkeypatch):
    monkeypatch.setattr(feed_module, "_PARTING", 0.3)
    monkeypatch.setattr(side, "SILENCE", 0.5)
    member = big.members["m0"]
    living = Living(member)
    sock, _ = begin(member.member)
    gone = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while not gone.wait(0.002) and sock.recv(1):
                pass

    reader = threading.Thread(target=trickle, daemon=True)
    reader.start()
    with sock:
        big.advance(30)
        wait_until(lambda: not member.feeder.fed, 60)
        gone.set()
        reader.join(10)
    assert living.held == 0


def test_one_that_goes_on_reading_hears_why_it_is_cut_off(big):
    member = big.members["m0"]
    sock, _ = begin(member.member)
    with sock:
        big.advance(30)
        read = []
        while "result" in (message := next_message(sock)):
            read.append(step := resend.unpack(message["result"]).step)
            side.receive_into(sock, memoryview(data := bytearray(message["bytes"])))
            # its buffer was not used again before it was sent, though the run had long forgotten the result
            assert data == big.truth.result(step).tobytes()
    # what was on its way came whole, in order; then the reason
    assert read == list(range(len(read)))
    assert len(read) < 30
    assert message["cut"].startswith("too far behind: ")


def test_results_of_any_size_may_wait_in_twos():
    assert not Limit(10).exceeded(2, 1 << 40)
    assert Limit(10).exceeded(3, 4)
    assert not Limit(12).exceeded(3, 4)
    assert Limit(1 << 40, most=5).exceeded(6, 1)


@pytest.mark.parametrize(
    "noise",
    [b"", b"\x00", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x01\x00\x00\x00\xc0", b"\x03\x00\x00\x00\x93\x01\x02",
     b"\x08\x00\x00\x00\x81\xa5after\xa1"],
)  # fmt: skip
@pytest.mark.parametrize("purpose", ["feed", "state"])
def test_garbage_on_a_side_connection_hurts_nobody(course, noise, purpose):
    member = course.members["m0"]
    course.advance(1)
    # the member may have closed it already
    with call(member.member, purpose=purpose) as sock, contextlib.suppress(OSError):
        sock.sendall(noise)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    course.advance(3)
    wait_until(lambda: not member.feeder.fed and not member.teacher._lessons)
    sock, answer = begin(member.member)
    with sock:
        assert answer["from"] == 4


def test_a_candidate_that_dies_while_it_reads_gives_everything_back(big):
    member = big.members["m0"]
    living = Living(member)
    for _ in range(3):
        sock, _ = begin(member.member)
        big.advance(2)
        with sock:
            sock.recv(1000)
        big.advance(2)
        wait_until(lambda: not member.feeder.fed)
    assert living.held == 0
    big.advance(3)
    assert living.buffers <= 6


def test_closing_a_member_ends_its_feeds_at_once(course):
    course.advance(1)
    socks = [begin(course.members["m0"].member)[0] for _ in range(3)]
    assert len(course.members["m0"].feeder.fed) == 3
    course.members.pop("m0").close()
    for sock in socks:
        with sock, contextlib.suppress(OSError):
            while sock.recv(1 << 16):
                pass
