"""Link a worker to its two neighbours in one generation: dial the next, take the connection of the previous."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable

from reknit.core.errors import ReknitError

from . import hello
from .hello import Hello, Refused
from .link import Link, LinkBroken
from .listener import Listener

_SLICE = 0.05
"""Seconds between looks at whether the world has moved on."""
_RETRY = 0.02
_PATIENCE = 0.5
"""Seconds to wait for one answer of a hello before the world is looked at and the peer dialled again."""


class WorldMoved(ReknitError):
    """A newer world exists: what we were doing for the old one is over."""


def link_next(
    address: str, greeting: Hello, secret: str, on_error: Callable[[], None], moved: Callable[[], bool]
) -> Link:
    """Dial the next worker and introduce ourselves; waits as long as the world does not move.

    A peer that refuses the connection is reported (its process is gone); one that does not answer is waited for, since
    whether it is dead is for membership to say.

    Raises:
        WorldMoved: a newer world arrived meanwhile.
        LinkBroken: the peer's port is closed, or it refused us.
    """
    host, _, port = address.rpartition(":")
    while not moved():
        sock = _connect(host.strip("[]"), int(port), moved)
        try:
            sock.settimeout(_PATIENCE)
            hello.dial(sock, greeting, secret)
        except Refused as error:
            sock.close()
            if moved():
                break
            raise LinkBroken("next", str(error)) from error
        except OSError:
            # no answer, or closed during the hello: frozen, overloaded or just dead; a dead one refuses the next dial
            sock.close()
            time.sleep(_RETRY)
            continue
        return Link(sock, "next", greeting.generation, on_error)
    raise WorldMoved("a newer world arrived while dialling")


def _connect(host: str, port: int, moved: Callable[[], bool]) -> socket.socket:
    family, kind, proto, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, proto)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    code = sock.connect_ex(target)
    while code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        if moved():
            sock.close()
            raise WorldMoved("a newer world arrived while connecting")
        if select.select([], [sock], [], _SLICE)[1]:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            break
    if code not in (0, errno.EISCONN):
        sock.close()
        raise LinkBroken("next", f"{errno.errorcode.get(code, '?')} (errno {code})")
    return sock


def take_previous(
    listener: Listener,
    generation: int,
    worker: str,
    *,
    on_error: Callable[[], None],
    wait: Callable[[], None],
    moved: Callable[[], bool],
) -> Link:
    """Wait for the previous worker's authenticated connection.

    Args:
        listener: our listener.
        generation: of the world being linked.
        worker: whose connection.
        on_error: given to the link.
        wait: blocks until something arrived or the world moved (may return early).
        moved: True once a newer world exists.

    Raises:
        WorldMoved: a newer world arrived meanwhile.
    """
    while not moved():
        sock = listener.take("ring", generation, worker)
        if sock is not None:
            return Link(sock, "previous", generation, on_error)
        wait()
    raise WorldMoved("a newer world arrived while waiting for the previous worker")
