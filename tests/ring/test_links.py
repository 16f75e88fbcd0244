"""Hello, listener, link and frames on real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from reknit.core import wire
from reknit.worker.ring import frames, hello
from reknit.worker.ring.frames import Kind
from reknit.worker.ring.hello import Hello, Refused
from reknit.worker.ring.link import Link, LinkBroken
from reknit.worker.ring.linking import WorldMoved, link_next
from reknit.worker.ring.listener import Listener
from support.links import linked
from support.rings import wait_until


@pytest.fixture
def listener():
    made = Listener("job", "b", "secret", "127.0.0.1", lambda: None)
    yield made
    made.close()


def greeting(**other) -> Hello:
    values = {"job": "job", "purpose": "ring", "generation": 3, "worker": "a", "incarnation": 1, "to": "b"} | other
    return Hello(**values)


def connect(listener: Listener) -> socket.socket:
    host, _, port = listener.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


@pytest.mark.parametrize(
    ("claim", "secret", "oldest", "why"),
    [
        (greeting(), "wrong", 0, "secret"),
        (greeting(job="other"), "secret", 0, "belongs to job"),
        (greeting(to="c"), "secret", 0, "this is 'b'"),
        (greeting(generation=2), "secret", 3, "generation 2 is over"),
    ],
)
def test_a_wrong_claim_is_refused_by_name(listener, claim, secret, oldest, why):
    listener.forget_before(oldest)
    with connect(listener) as sock, pytest.raises((Refused, OSError), match=why):
        hello.dial(sock, claim, secret)
    assert listener.take("ring", claim.generation, "a") is None


def test_a_proof_cannot_be_replayed(listener):
    """Recording a whole good hello and sending it again does not get in: the listener's nonce is new each time."""
    sent = []

    class Recording:
        def __init__(self, sock):
            self.sock = sock

        def sendall(self, data):
            sent.append(bytes(data))
            self.sock.sendall(data)

        def recv(self, count):
            return self.sock.recv(count)

    with connect(listener) as sock:
        hello.dial(Recording(sock), greeting(), "secret")
    wait_until(lambda: listener.take("ring", 3, "a") is not None)
    with connect(listener) as sock:
        sock.sendall(b"".join(sent))
        wait_until(lambda: bool(listener.refusals))
    assert "secret" in listener.refusals[-1]
    assert listener.take("ring", 3, "a") is None


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x04\x00\x00\x00\xc1\xc1\xc1\xc1",
                                     b"\x05\x00\x00\x00" + wire.pack({"h": 1})])  # fmt: skip
def test_garbage_on_the_port_delays_nobody(listener, garbage):
    with connect(listener) as noise:
        noise.sendall(garbage)
        with connect(listener) as sock:
            hello.dial(sock, greeting(), "secret")
        wait_until(lambda: listener.take("ring", 3, "a") is not None)


def test_a_hundred_silent_connections_do_not_block_a_later_one_for_ever(listener):
    noise = [connect(listener) for _ in range(100)]
    for sock in noise:
        sock.close()

    def arrived() -> bool:
        with connect(listener) as sock:
            try:
                hello.dial(sock, greeting(), "secret")
            except (OSError, Refused):
                return False
        return True

    wait_until(arrived)


def test_a_later_generation_is_kept_an_older_one_is_closed(listener):
    for generation in (3, 4):
        with connect(listener) as sock:
            hello.dial(sock, greeting(generation=generation), "secret")
    wait_until(lambda: len(listener._waiting) == 2)
    listener.forget_before(4)
    assert listener.take("ring", 3, "a") is None
    assert listener.take("ring", 4, "a") is not None


@pytest.fixture(params=[False, True], ids=["socket", "lane"])
def pair(request) -> Callable[[], tuple[Link, Link]]:
    return lambda: linked(lanes=request.param)


def test_frames_arrive_in_order_whatever_the_kernel_takes_at_once(pair):
    left, right = pair()
    payloads = [bytes([i % 256]) * (i * 40_000) for i in range(60)]
    received = []

    def read():
        for _ in payloads:
            header = right.receive_header()
            received.append((header.piece, right.receive_payload(header)))

    for i, p in enumerate(payloads[:30]):  # nobody reads yet: the sender thread has to take over
        left.send(Kind.REDUCE, 9, i, 1, p)
    thread = threading.Thread(target=read)
    thread.start()
    for i, p in enumerate(payloads[30:], 30):
        left.send(Kind.REDUCE, 9, i, 1, p)
    thread.join(30)
    assert [r[0] for r in received] == list(range(60))
    assert [r[1] for r in received] == payloads
    assert left.drain(5)
    assert left.done == left.issued == 60
    left.close()
    right.close()


@pytest.mark.parametrize("end", ["abort", "close-peer", "interrupt"])
def test_a_blocked_receive_is_freed_at_once(end, pair):
    left, right = pair()
    broken = []

    def read():
        try:
            right.receive_header()
        except LinkBroken as error:
            broken.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.02)
    {"abort": right.abort, "close-peer": left.close, "interrupt": right.interrupt}[end]()
    thread.join(10)
    assert not thread.is_alive()
    assert len(broken) == 1
    left.close()
    right.close()


def test_a_blocked_sender_is_freed_at_once_and_leaves_no_thread(pair):
    left, right = pair()
    before = threading.active_count()
    for i in range(64):
        left.send(Kind.REDUCE, 1, i, 1, bytes(frames.PIECE))
    assert threading.active_count() == before + 1
    left.close()
    assert threading.active_count() == before
    right.close()


def test_bye_is_orderly_and_a_foreign_generation_is_not(pair):
    left, right = pair()
    left.bye(7)
    with pytest.raises(LinkBroken) as broken:
        right.receive_header()
    assert broken.value.orderly
    assert not broken.value.unmade
    left.close()
    right.close()
    left, right = pair()
    left.generation = 4
    left.send(Kind.TOKEN, 0, 1, 0, b"x")
    with pytest.raises(LinkBroken, match="generation 4 in 5"):
        right.receive_header()
    left.close()
    right.close()


def test_a_closed_port_is_reported_and_a_silent_one_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(LinkBroken, match="REFUSED") as refused:
        link_next(f"127.0.0.1:{port}", greeting(), "secret", lambda: None, lambda: False)
    assert refused.value.unmade
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts (the kernel does) and never answers
        looks = iter(range(3))
        with pytest.raises(WorldMoved):
            link_next(
                f"127.0.0.1:{server.getsockname()[1]}", greeting(), "secret", lambda: None,
                lambda: next(looks, None) is None,
            )  # fmt: skip


def test_a_header_that_is_not_ours_is_named():
    good = frames.Header(Kind.FINAL, 3, 2, 8, 10, 7).pack()
    assert frames.unpack(good) == frames.Header(Kind.FINAL, 3, 2, 8, 10, 7)
    for at, value, why in ((0, 0x58, "magic"), (4, 99, "kind"), (23, 0xFF, "bytes")):
        bad = bytearray(good)
        bad[at] = value
        with pytest.raises(frames.WireError, match=why):
            frames.unpack(frames.seal(bytes(bad)))


@pytest.mark.parametrize("bit", range(8 * frames.HEADER.size))
def test_a_header_in_which_a_bit_turned_over_is_not_believed(bit):
    bad = bytearray(frames.Header(Kind.FINAL, 3, 2, 8, 10, 7, check=5).pack())
    bad[bit // 8] ^= 1 << bit % 8
    with pytest.raises(frames.WireError, match=r"damaged|magic"):
        frames.unpack(bad)


@pytest.mark.parametrize("size", [1, 100, frames.CHECKED - 1])
def test_a_short_payload_in_which_a_bit_turned_over_is_not_believed(pair, size):
    left, right = pair()
    payload = bytearray(range(256)) * 64
    payload = payload[:size]
    header = frames.Header(Kind.TOKEN, 5, 0, 1, 0, size, check=frames.check_of(memoryview(payload))).pack()
    payload[size // 2] ^= 4
    left._sock.sendall(header + payload)
    with pytest.raises(LinkBroken, match="damaged"):
        right.receive_payload(right.receive_header())
    left.close()
    right.close()
