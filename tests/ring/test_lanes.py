"""Payloads through memory that two workers of one host share: what is in a chunk, when it is used again, by whom."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from reknit.worker.ring import hello, lane
from reknit.worker.ring.door import Door, Offer
from reknit.worker.ring.frames import Header, Kind
from reknit.worker.ring.hello import Hello
from reknit.worker.ring.lane import CHUNK, CHUNKS, LEAST, Incoming, Outgoing
from reknit.worker.ring.link import LinkBroken
from reknit.worker.ring.listener import Listener
from support.links import GENERATION, linked
from support.rings import wait_until


@pytest.fixture
def ends():
    left, right = linked(lanes=True)
    yield left, right
    left.close()
    right.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def pattern(number: int, size: int) -> bytes:
    return np.random.default_rng(number).bytes(size)


def test_a_chunk_is_not_written_again_before_it_was_released(ends):
    left, right = ends
    sent = [pattern(n, CHUNK) for n in range(3 * CHUNKS)]
    for number, payload in enumerate(sent):
        left.send(Kind.REDUCE, 1, number, 1, payload)
    held = []
    for number in range(CHUNKS):  # as many as there are, none given back: all of them still hold what was sent
        assert right.receive_header().piece == number
        held.append(right.payload(np.empty(CHUNK, np.uint8)))
        right._incoming._next = (right._incoming._next + 1) % CHUNKS  # look on without releasing
    assert left.done == CHUNKS
    assert [bytes(view) for view in held] == sent[:CHUNKS]
    for _ in range(CHUNKS):
        right._in_lane = True
        right.release()
    right._incoming._next = 0
    for number in range(CHUNKS, len(sent)):
        header = right.receive_header()
        assert (header.piece, header.lane) == (number, True)
        assert right.receive_payload(header) == sent[number]
    assert left.drain(10)
    assert left.done == left.issued


def test_what_is_made_in_the_lane_is_read_there(ends):
    left, right = ends
    for number in range(2 * CHUNKS):
        place = left.reserve(CHUNK)
        assert place is not None
        place[:] = number
        left.send_reserved(Kind.REDUCE, 1, number, 1, CHUNK)
        header = right.receive_header()
        elsewhere = np.full(CHUNK, 255, np.uint8)
        found = right.payload(elsewhere)
        assert header.lane
        assert (found == number).all()
        assert (elsewhere == 255).all()
        assert not found.flags.writeable
        right.release()


def test_nothing_is_reserved_while_frames_wait(ends):
    left, right = ends
    for number in range(CHUNKS + 1):
        left.send(Kind.REDUCE, 1, number, 1, bytes(CHUNK))
    assert left.reserve(CHUNK) is None
    for number in range(CHUNKS + 1):
        header = right.receive_header()
        assert header.piece == number
        right.receive_payload(header)
    assert left.drain(10)
    assert left.reserve(CHUNK) is not None


@pytest.mark.parametrize("size", [1, LEAST - 1, CHUNK + 1, 5 * CHUNK])
def test_small_and_huge_payloads_go_through_the_socket(ends, size):
    left, right = ends
    payload = pattern(size, size)
    left.send(Kind.TOKEN, 1, 0, 0, payload)
    header = right.receive_header()
    assert not header.lane
    assert right.receive_payload(header) == payload
    assert left.reserve(size) is None


@pytest.mark.parametrize("end", ["abort", "close-peer", "kill-peer"])
def test_a_sender_without_chunks_notices_the_end_of_the_peer(end):
    left, right = linked(lanes=True)
    failed = threading.Event()
    left._on_error = failed.set
    for number in range(2 * CHUNKS):
        left.send(Kind.REDUCE, 1, number, 1, bytes(CHUNK))
    assert left.done == CHUNKS
    if end == "abort":
        left.abort()
        left._sender.join(10)
        assert not left._sender.is_alive()
    else:
        if end == "kill-peer":  # as the kernel ends a killed process: unread data, so a reset
            right._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            right._sock.close()
        right.close()
        assert failed.wait(10)
        assert left.failure
    with pytest.raises(LinkBroken):
        left.send(Kind.REDUCE, 1, 0, 1, bytes(CHUNK))
    left.close()
    right.close()


def test_what_was_sent_survives_the_end_of_the_sender():
    left, right = linked(lanes=True)
    sent = [pattern(n, CHUNK) for n in range(CHUNKS)]
    for number, payload in enumerate(sent):
        left.send(Kind.FINAL, 1, number, 1, payload)
    left.bye(2)
    left.close()
    for payload in sent:
        assert right.receive_payload(right.receive_header()) == payload
    with pytest.raises(LinkBroken) as broken:
        right.receive_header()
    assert broken.value.orderly
    right.close()


def test_a_header_that_does_not_fit_the_lane_is_refused(ends):
    left, right = ends
    left._sock.sendall(Header(Kind.REDUCE, GENERATION, 1, 0, 1, CHUNK + 1, lane=True).pack())
    with pytest.raises(LinkBroken, match="lane"):
        right.receive_header()
    left, right = linked(lanes=False)
    left._sock.sendall(Header(Kind.REDUCE, GENERATION, 1, 0, 1, CHUNK, lane=True).pack())
    with pytest.raises(LinkBroken, match="lane"):
        right.receive_header()
    left.close()
    right.close()


def test_links_with_lanes_leave_nothing_behind():
    linked(lanes=True)[0].close()
    before, mapped = descriptors(), Path("/proc/self/maps").read_text().count("reknit-lane")
    for _ in range(20):
        left, right = linked(lanes=True)
        left.send(Kind.REDUCE, 1, 0, 1, bytes(CHUNK))
        assert right.receive_payload(right.receive_header()) == bytes(CHUNK)
        left.close()
        right.close()
    del left, right
    assert descriptors() <= before
    assert Path("/proc/self/maps").read_text().count("reknit-lane") <= mapped


def test_the_receiver_can_neither_write_nor_shrink_the_memory():
    outgoing = Outgoing()
    memory, back = outgoing.descriptors
    with pytest.raises(PermissionError):
        mmap.mmap(memory, lane.CHUNK)
    with pytest.raises(PermissionError):
        os.ftruncate(memory, 0)
    incoming = Incoming(os.dup(memory), os.dup(back))
    incoming.close()
    outgoing.close()


def test_memory_that_is_no_lane_is_refused():
    unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, lane._SIZE)
    with pytest.raises(OSError, match="not a lane"):
        Incoming(unsealed, os.eventfd(0))
    small = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(small, fcntl.F_ADD_SEALS, lane._SEALS)
    with pytest.raises(OSError, match="not a lane"):
        Incoming(small, os.eventfd(0))
    with pytest.raises(OSError, match="cannot be shared"):
        Incoming(os.open(os.devnull, os.O_RDWR), os.eventfd(0))


def test_garbage_at_the_door_delays_nobody_and_leaves_nothing():
    door = Door()
    before = descriptors()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as noise:
        noise.connect(f"\0{door.name}")
        for payload, fds in ((b"", []), (b"x" * 99, []), (secrets.token_bytes(16), [0, 1, 2, 0, 1])):
            socket.send_fds(noise, [payload], fds)
        offer = Offer()
        token = offer(door.name)
        assert door.take(secrets.token_bytes(16)) is None
        taken = door.take(token)
        assert taken is not None
        assert door.take(token) is None, "a lane is taken once"
        kept = offer.settle(taken=True)
        for number in range(200):  # and nobody reads meanwhile
            try:
                socket.send_fds(noise, [secrets.token_bytes(16)], [0, 1])
            except BlockingIOError:
                assert number, "the queue was empty"
                break
        assert Offer()(door.name) == b"", "a door that is full gives no lane"
    taken.close()
    kept.close()
    door.close()
    assert descriptors() < before


def test_a_dialer_that_is_not_let_in_leaves_no_lane():
    listener = Listener("job", "b", "secret", "127.0.0.1", lambda: None)
    host, _, port = listener.address.rpartition(":")
    before = descriptors()
    with socket.create_connection((host, int(port)), timeout=5) as sock:
        offer = Offer()
        with pytest.raises((hello.Refused, OSError)):
            hello.dial(sock, Hello("job", "ring", 3, "a", 1, "b"), "wrong", offer)
        assert offer.settle(taken=False) is None
    wait_until(lambda: bool(listener.refusals))
    wait_until(lambda: descriptors() <= before)
    listener.close()


_DIAL = """
import socket, sys
from reknit.worker.ring.door import Offer
from reknit.worker.ring import hello
print(Offer()(sys.argv[1]).hex() or "unreachable")
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
@pytest.mark.parametrize("apart", [False, True])
def test_a_door_is_reached_within_a_network_namespace_only(apart):
    """Two namespaces are two hosts: a lane between them would go around the network that is between them."""
    namespace = ["unshare", "--user", "--map-root-user", "--net"] if apart else []
    if apart and subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces here")
    door = Door()
    said = subprocess.run(
        [*namespace, sys.executable, "-c", _DIAL, door.name], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    assert (said == "unreachable") == apart
    if not apart:
        taken = door.take(bytes.fromhex(said))
        assert taken is not None, "the dialer is dead, what it shared is not"
        taken.close()
    door.close()
