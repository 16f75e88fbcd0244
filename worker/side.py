"""Side connections: what travels between two workers beside the ring (state, feed). Blocking sockets, one thread each.

A message is a u32 length and msgpack (a dict); raw bytes may follow it, whose number the message says. Every wait ends:
with the peer's silence, with `shutdown` from another thread, or with the end of the connection.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from reknit.core import wire
from reknit.core.address import split
from reknit.core.errors import ReknitError, WireError
from reknit.core.events import Member

from .ring import hello
from .ring.hello import Hello

SILENCE = 5.0
"""Seconds without a byte (or without room for one) until a peer is given up. Peers that wait say so more often."""
ALIVE = 0.5
"""Seconds between two words of a peer that has nothing else to say."""
SLICE = 1 << 20
"""Bytes for each system call."""
_LENGTH = struct.Struct("<I")
_MAX_MESSAGE = 64 << 20
_LOOK = 0.05


class Broken(ReknitError):
    """A side connection ended, or what came over it does not fit."""


def dial(
    peer: Member,
    greeting: Hello,
    secret: str,
    *,
    given_up: Callable[[], bool],
    made: Callable[[socket.socket], object],
) -> socket.socket:
    """Connect to a peer's listener and prove who we are.

    Args:
        peer: whom to call.
        greeting: who we are and what for.
        secret: the job's secret.
        given_up: looked at while connecting; True ends it.
        made: gets the socket at once, so that another thread can shut it down.

    Raises:
        Broken: nobody is there, or `given_up`.
        Refused: the peer does not accept us.
        OSError: the connection failed or timed out.
    """
    family, kind, proto, _, target = socket.getaddrinfo(*split(peer.address), type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, proto)
    try:
        made(sock)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _connect(sock, target, given_up)
        if given_up():
            raise Broken("not needed any more")
        sock.settimeout(SILENCE)
        hello.dial(sock, greeting, secret)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect(sock: socket.socket, target: Any, given_up: Callable[[], bool]) -> None:
    code = sock.connect_ex(target)
    deadline = time.monotonic() + SILENCE
    while code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        if given_up():
            raise Broken("not needed any more")
        if time.monotonic() > deadline:
            raise Broken(f"no answer within {SILENCE:g} s")
        if _writable(sock):
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code not in (0, errno.EISCONN):
        raise Broken(f"{errno.errorcode.get(code, '?')} (errno {code})")


def _writable(sock: socket.socket) -> bool:
    poll = select.poll()  # select() refuses descriptors from 1024 on
    poll.register(sock, select.POLLOUT)
    return bool(poll.poll(1000 * _LOOK))


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send a message.

    Raises:
        OSError: the peer is gone, or reads nothing.
    """
    data = wire.pack(message)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def send_bytes(sock: socket.socket, view: memoryview, cut: Callable[[], bool] = lambda: False) -> None:
    """Send raw bytes; each slice must find room within the socket's timeout.

    Raises:
        OSError: the peer is gone, or reads nothing.
        Broken: `cut` said so between two slices.
    """
    while view.nbytes:
        if cut():
            raise Broken("cut off")
        view = view[sock.send(view[:SLICE]) :]


def receive(sock: socket.socket, most: int = _MAX_MESSAGE) -> dict[str, Any]:
    """Receive a message of at most `most` bytes.

    Raises:
        Broken: closed, or not a message of this protocol.
        OSError: the connection failed or was silent for too long.
    """
    head = bytearray(_LENGTH.size)
    receive_into(sock, memoryview(head))
    (length,) = _LENGTH.unpack(head)
    if length > most:
        raise Broken(f"a message of {length} bytes, at most {most} were due")
    data = bytearray(length)
    receive_into(sock, memoryview(data))
    try:
        message = wire.unpack(bytes(data))
    except WireError as error:
        raise Broken(str(error)) from error
    if not isinstance(message, dict):
        raise Broken("not a message of this protocol")
    return message


def receive_into(sock: socket.socket, view: memoryview, each: Callable[[memoryview], object] | None = None) -> None:
    """Fill `view`; `each` sees every run of bytes as it arrives (to hash it).

    Raises:
        Broken: closed before all bytes were there.
        OSError: the connection failed or was silent for too long.
    """
    while view.nbytes:
        count = sock.recv_into(view[:SLICE])
        if not count:
            raise Broken("closed by the peer")
        if each is not None:
            each(view[:count])
        view = view[count:]


def pending(sock: socket.socket) -> bool:
    """True if the peer has sent something, or has closed: whoever waits for something else should look at it."""
    poll = select.poll()  # `recv` with MSG_DONTWAIT would wait all the same: for the socket's timeout
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def shutdown(sock: socket.socket | None) -> None:
    """Free whoever is blocked on the connection; safe from any thread."""
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
