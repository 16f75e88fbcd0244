"""The worker's one listening socket: accepts, checks the hello, keeps the connection until somebody asks for it.

A connection of a *later* generation than we know of is kept: its dialer heard of the new world first. Connections of
past generations are refused and closed. Each hello has a short thread of its own: garbage on the port delays nobody.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable

from reknit.core.address import join
from reknit.core.address_family import family_of

from . import hello
from .door import Door
from .hello import Hello, Refused
from .lane import Incoming

HELLO_SECONDS = 5.0
_MAX_PENDING = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Accepted:
    """A connection after its hello, and the lane that came with it if its dialer is on this host."""

    sock: socket.socket
    lane: Incoming | None

    def close(self) -> None:
        """Free both."""
        self.sock.close()
        if self.lane is not None:
            self.lane.close()


class Listener:
    """Accepts ring, state and feed connections for one worker.

    Args:
        job, worker, secret: who we are and what a peer must prove.
        host: address to bind; the port is the kernel's choice.
        on_arrival: called (on a hello thread) whenever a connection has been accepted.
        lanes: take lanes from ring neighbours on this host.
    """

    def __init__(
        self,
        job: str,
        worker: str,
        secret: str,
        host: str,
        on_arrival: Callable[[], None],
        *,
        lanes: bool = True,
    ) -> None:
        self._sock = socket.socket(family_of(host), socket.SOCK_STREAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sock.bind((host, 0))
        self._sock.listen(128)
        self.address = join(host, self._sock.getsockname()[1])
        self.refusals: list[str] = []
        self._identity = (job, worker, secret)
        self._on_arrival = on_arrival
        self._oldest = 0
        self.lanes = lanes
        self._door = Door() if lanes else None
        self._waiting: dict[tuple[str, int, str], Accepted] = {}
        self._calls: list[tuple[Hello, socket.socket]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._hellos = threading.BoundedSemaphore(_MAX_PENDING)
        self._thread = threading.Thread(target=self._accept, name="ring-listen", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                continue
            if not self._hellos.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._greet, args=(sock,), name="ring-hello", daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        job, worker, secret = self._identity
        try:
            sock.settimeout(HELLO_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            claim, lane = hello.accept(sock, job, worker, secret, self._oldest, door=self._door)
        except (Refused, OSError) as error:
            self.refusals = [*self.refusals[-31:], str(error)]
            sock.close()
            return
        finally:
            self._hellos.release()
        arrived = Accepted(sock, lane)
        with self._lock:
            if self._closed or claim.generation < self._oldest:
                arrived.close()
                return
            old = None
            if claim.purpose == "ring":
                old = self._waiting.pop((claim.purpose, claim.generation, claim.worker), None)
                self._waiting[claim.purpose, claim.generation, claim.worker] = arrived
            else:
                self._calls.append((claim, sock))
        if old is not None:
            old.close()
        self._on_arrival()

    def take(self, purpose: str, generation: int, worker: str) -> Accepted | None:
        """Take an accepted connection, or None if it is not there (yet)."""
        with self._lock:
            return self._waiting.pop((purpose, generation, worker), None)

    def take_any(self, purpose: str) -> tuple[Hello, socket.socket] | None:
        """Take the oldest accepted connection of a purpose beside the ring."""
        with self._lock:
            for call in self._calls:
                if call[0].purpose == purpose:
                    self._calls.remove(call)
                    return call
        return None

    def forget_before(self, generation: int) -> None:
        """From now on refuse generations older than this and close what waits of them."""
        with self._lock:
            self._oldest = max(self._oldest, generation)
            for key in [k for k in self._waiting if k[1] < self._oldest]:
                self._waiting.pop(key).close()
            for call in [c for c in self._calls if c[0].generation < self._oldest]:
                self._calls.remove(call)
                call[1].close()

    def close(self) -> None:
        """Stop listening and close everything that waits."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join()
        with self._lock:
            for arrived in self._waiting.values():
                arrived.close()
            for _, sock in self._calls:
                sock.close()
            self._waiting.clear()
            self._calls.clear()
        if self._door is not None:
            self._door.close()
