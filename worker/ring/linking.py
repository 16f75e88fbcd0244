"""Link a worker to its two neighbours in one generation: dial the next, take the connection of the previous."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable

from reknit.core.address import split
from reknit.core.errors import ReknitError

from . import hello
from .door import Offer
from .hello import Hello, Refused
from .link import Link, LinkBroken
from .listener import Listener

_SLICE = 0.05
"""Seconds between looks at whether the world has moved on."""
_RETRY = 0.02
CONNECT_PATIENCE = 3.0
"""Seconds until a host that does not answer at all is reported: the kernel answers, however busy the process is."""
HELLO_PATIENCE = 10.0
"""Seconds until a peer is reported that is connected and does not finish its hello: a process may be busy."""


class WorldMoved(ReknitError):
    """A newer world exists: what we were doing for the old one is over."""


def link_next(
    address: str,
    greeting: Hello,
    secret: str,
    on_error: Callable[[], None],
    moved: Callable[[], bool],
    *,
    lanes: bool = True,
) -> Link:
    """Dial the next worker and introduce ourselves; waits as long as the world does not move.

    A peer that refuses the connection is reported at once (its process is gone), one that does not answer after a
    while. Whether it is dead or only the way to it is broken is for membership to say.

    Args:
        address: `host:port` of the next worker's listener.
        greeting: who we are.
        secret: the job's.
        on_error: given to the link.
        moved: True once a newer world exists.
        lanes: share memory with a worker on this host.

    Raises:
        WorldMoved: a newer world arrived meanwhile.
        LinkBroken: the peer's port is closed, it does not answer, or it refused us.
    """
    host, port = split(address)
    give_up = None
    while not moved():
        sock = _connect(host, port, moved)
        # counted from the first connection: a peer that accepts and closes, again and again, does not answer either
        give_up = give_up or time.monotonic() + HELLO_PATIENCE
        offer = Offer()
        taken = False
        try:
            taken = hello.dial(_Watched(sock, moved, give_up), greeting, secret, offer if lanes else _no_offer)
        except Refused as error:
            sock.close()
            if moved():
                break
            raise LinkBroken("next", str(error), unmade=True) from error
        except OSError as error:
            # closed during the hello: overloaded or just dead; a dead one refuses the next dial
            sock.close()
            if time.monotonic() > give_up:
                raise LinkBroken("next", f"no answer to the hello within {HELLO_PATIENCE:g} s", unmade=True) from error
            time.sleep(_RETRY)
            continue
        except WorldMoved:
            sock.close()
            raise
        finally:
            outgoing = offer.settle(taken=taken)
        return Link(sock, "next", greeting.generation, on_error, outgoing=outgoing)
    raise WorldMoved("a newer world arrived while dialling")


def _no_offer(_door: str) -> bytes:
    return b""


class _Watched:
    """A connection during the hello, whose waiting ends when the world moves or patience does.

    The connection is not given up for a short silence: the listener may have taken it already, and a second one
    beside it would break the link that was just made.
    """

    def __init__(self, sock: socket.socket, moved: Callable[[], bool], give_up: float) -> None:
        self._sock = sock
        self._moved = moved
        self._give_up = give_up

    def sendall(self, data: bytes) -> None:
        # a hello is far smaller than the kernel's buffer
        self._sock.setblocking(True)
        self._sock.sendall(data)

    def recv(self, count: int) -> bytes:
        while not select.select([self._sock], [], [], _SLICE)[0]:
            if self._moved():
                raise WorldMoved("a newer world arrived during the hello")
            if time.monotonic() > self._give_up:
                raise TimeoutError("no answer")
        return self._sock.recv(count)


def _connect(host: str, port: int, moved: Callable[[], bool]) -> socket.socket:
    family, kind, proto, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, proto)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    give_up = time.monotonic() + CONNECT_PATIENCE
    code = sock.connect_ex(target)
    while code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        if moved():
            sock.close()
            raise WorldMoved("a newer world arrived while connecting")
        if select.select([], [sock], [], _SLICE)[1]:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        elif time.monotonic() > give_up:
            sock.close()
            raise LinkBroken("next", f"no answer from {host} within {CONNECT_PATIENCE:g} s", unmade=True)
    if code not in (0, errno.EISCONN):
        sock.close()
        raise LinkBroken("next", f"{errno.errorcode.get(code, '?')} (errno {code})", unmade=True)
    return sock


def take_previous(
    listener: Listener,
    generation: int,
    worker: str,
    *,
    on_error: Callable[[], None],
    wait: Callable[[float], None],
    moved: Callable[[], bool],
) -> Link:
    """Wait for the previous worker's authenticated connection.

    Args:
        listener: our listener.
        generation: of the world being linked.
        worker: whose connection.
        on_error: given to the link.
        wait: blocks until something arrived or the world moved, or so many seconds.
        moved: True once a newer world exists.

    Raises:
        WorldMoved: a newer world arrived meanwhile.
    """
    while not moved():
        arrived = listener.take("ring", generation, worker)
        if arrived is not None:
            return Link(arrived.sock, "previous", generation, on_error, incoming=arrived.lane)
        wait(_SLICE)  # what comes between the look and the wait wakes nobody
    raise WorldMoved("a newer world arrived while waiting for the previous worker")
