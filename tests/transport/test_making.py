"""Groups made over the ring's links: what members tell each other, who breaks, and the sockets of a group."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from reknit.worker.ring.link import Link, LinkBroken
from reknit.worker.ring.linking import WorldMoved
from reknit.worker.ring.reduction import Route
from reknit.worker.transport import largest
from reknit.worker.transport.group import CollectiveFailed
from reknit.worker.transport.making import Making, Unusable
from reknit.worker.transport.meeting import Meeting, MeetingFailed
from reknit.worker.transport.sockets import shut_down
from reknit.worker.transport.watch import Watch
from support.pairs import pair


class Ring:
    """Links of a ring of threads."""

    def __init__(self, size: int) -> None:
        pairs = [pair() for _ in range(size)]
        self.moved = [False] * size
        self.following = [Link(a, "next", 1, lambda: None) for a, _ in pairs]
        self.previous = [Link(pairs[i - 1][1], "previous", 1, lambda: None) for i in range(size)]
        self.watches = [Watch(self.previous[i], self.following[i], lambda i=i: self.moved[i]) for i in range(size)]
        self.answers: list[object] = [None] * size

    def each(self, do) -> list[object]:
        """Do something as every member, at once; what it returned or raised."""

        def one(rank: int) -> None:
            try:
                self.answers[rank] = do(rank)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.answers[rank] = error

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(self.watches))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        return self.answers

    def close(self) -> None:
        for link in (*self.previous, *self.following):
            link.close()
        for watch in self.watches:
            watch.close()


@pytest.fixture(params=[2, 4])
def ring(request):
    made = Ring(request.param)
    yield made
    made.close()


def together(ring, rank, make):
    making = Making(make, "test-make", ring.watches[rank].ring)
    making.together(
        rank,
        len(ring.watches),
        previous=ring.previous[rank],
        following=ring.following[rank],
        watch=ring.watches[rank],
    )
    return making


def test_everybody_writes_and_reads_all_as_gloo_does(ring):
    size = len(ring.watches)

    def make(rank):
        def made(store: Meeting) -> list[bytes]:
            store.set(f"0/{rank}", bytes([rank]) * 3)
            return [store.get(f"0/{other}") for other in range(size)]

        return made

    for answer in ring.each(lambda rank: together(ring, rank, make(rank))):
        assert answer.made == [bytes([r]) * 3 for r in range(size)]
        assert answer.addresses == tuple(bytes([r]) * 3 for r in range(size))


def test_the_first_writes_and_the_others_read_as_nccl_does(ring):
    def make(rank):
        def made(store: Meeting) -> bytes:
            if rank == 0:
                store.set("0", b"unique id")
                return b"unique id"
            return store.get("0")

        return made

    assert [a.made for a in ring.each(lambda rank: together(ring, rank, make(rank)))] == [b"unique id"] * len(
        ring.watches
    )


def test_what_nobody_wrote_is_an_error_by_name(ring):
    answers = ring.each(lambda rank: together(ring, rank, lambda store: store.get("strange")))
    assert all(isinstance(a, CollectiveFailed) and "'strange'" in str(a) for a in answers)


def test_a_library_that_does_not_start_on_one_fails_all(ring):
    def make(rank):
        def made(store: Meeting) -> None:
            if rank == 1:
                raise OSError("no such interface")
            store.set(str(rank), b"here")
            store.get("1")

        return made

    answers = ring.each(lambda rank: together(ring, rank, make(rank)))
    assert isinstance(answers[1], Unusable)
    assert "no such interface" in str(answers[1])
    assert all(isinstance(a, CollectiveFailed) and "at a peer" in str(a) for r, a in enumerate(answers) if r != 1)


def test_a_meeting_that_is_off_frees_the_thread_that_makes(ring):
    store = Meeting(lambda: None)
    threading.Timer(0.05, store.answer, (None,)).start()
    with pytest.raises(MeetingFailed):
        store.get("0")


def test_the_largest_of_everybody(ring):
    size = len(ring.watches)
    mine = [np.array([rank, -rank, 5 if rank == 1 else 0], np.int32) for rank in range(size)]
    answers = ring.each(
        lambda rank: largest.over_all(
            Route(rank, size - 1, size, 0, 0), ring.previous[rank], ring.following[rank], 7, mine[rank]
        )
    )
    assert all(a.tolist() == [size - 1, 0, 5] for a in answers)


def test_largest_of_different_steps_is_a_broken_peer(ring):
    size = len(ring.watches)

    def one(rank):
        try:
            return largest.over_all(
                Route(rank, size - 1, size, 0, 0),
                ring.previous[rank],
                ring.following[rank],
                rank,
                np.zeros(2, np.int32),
            )
        finally:
            ring.following[rank].abort()

    assert any(isinstance(a, LinkBroken) and "protocol" in str(a) for a in ring.each(one))


# ------------------------------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize("side", ["previous", "next"])
def test_a_link_that_ends_ends_the_waiting(side):
    ring = Ring(2)
    try:
        peer = ring.following[1] if side == "previous" else ring.previous[1]
        threading.Timer(0.05, peer.close).start()
        with pytest.raises(LinkBroken) as caught:
            ring.watches[0].until(lambda: False)
        assert caught.value.side == side
    finally:
        ring.close()


def test_frames_that_came_early_do_not_end_the_waiting():
    ring = Ring(2)
    try:
        ring.following[1]._sock.sendall(b"a frame of a faster neighbour")
        assert ring.watches[0].until(lambda: False, 0.2) is False
    finally:
        ring.close()


def test_our_own_abort_and_a_newer_world_end_the_waiting():
    ring = Ring(2)
    try:
        threading.Timer(0.05, ring.previous[0].abort).start()
        with pytest.raises(LinkBroken):
            ring.watches[0].until(lambda: False)
        threading.Timer(0.05, lambda: ring.moved.__setitem__(1, True)).start()
        with pytest.raises((WorldMoved, LinkBroken)):
            ring.watches[1].until(lambda: False)
    finally:
        ring.close()


def test_the_bell_wakes_at_once_and_may_ring_late():
    ring = Ring(2)
    try:
        rung = []
        threading.Timer(0.05, lambda: (rung.append(1), ring.watches[0].ring())).start()
        assert ring.watches[0].until(lambda: bool(rung), pace=20.0)
        ring.watches[0].close()
        ring.watches[0].ring()
    finally:
        ring.close()


# ------------------------------------------------------------------------------------------------------------- sockets


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_only_connections_of_the_group_are_shut_down(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        mine = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} on this machine")
    with mine, socket.create_server((host, 0), family=family) as other, socket.create_server(("127.0.0.1", 0)) as third:
        came = socket.create_connection(mine.getsockname()[:2])  # a peer's end, in another process as a rule
        accepted, _ = mine.accept()
        dialled = socket.create_connection(other.getsockname()[:2])
        theirs, _ = other.accept()
        bystander = socket.create_connection(third.getsockname())
        answering, _ = third.accept()
        plain, unix = socket.socketpair()
        with came, accepted, dialled, theirs, bystander, answering, plain, unix:
            bystander.settimeout(5.0)
            before = [(s, os.get_blocking(s.fileno())) for s in (bystander, answering, plain, unix, mine, other)]

            def said(server: socket.socket) -> bytes:
                """As a member tells it: other things, and its address as the kernel lays it out."""
                family_of, port = server.family, server.getsockname()[1]
                flow = b"" if family_of == socket.AF_INET else bytes(4)
                packed = socket.inet_pton(family_of, host)
                return (
                    b"name" + int(family_of).to_bytes(2, "little") + port.to_bytes(2, "big") + flow + packed + b"tail"
                )

            assert shut_down(said(mine), [said(other)]) >= 2
            assert accepted.recv(1) == b""
            assert dialled.recv(1) == b""
            bystander.sendall(b"x")
            assert answering.recv(1) == b"x"
            assert [(s, os.get_blocking(s.fileno())) for s, _ in before] == before
            again = socket.create_connection(mine.getsockname()[:2])  # still listening
            again.close()


def test_a_search_leaves_no_descriptor_behind():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        shut_down(b"nothing", [b"no one"])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_search_while_others_open_and_close():
    stop = time.monotonic() + 0.5

    def churn() -> None:
        while time.monotonic() < stop:
            a, b = socket.socketpair()
            a.close()
            b.close()

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    while time.monotonic() < stop:
        assert shut_down(b"nothing", [b"no one"]) == 0
    for thread in threads:
        thread.join()
