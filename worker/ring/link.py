"""One TCP connection to a ring neighbour: ordered sends that never block, receives that can be aborted at once.

Use: `link.send(...)` returns a ticket; a buffer handed in must stay unchanged until `link.done >= ticket`.
`link.abort()` may be called from any thread: it shuts the socket down, which frees every blocked thread.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
from collections.abc import Callable

from reknit.core.errors import ReknitError, WireError

from . import frames
from .frames import Header, Kind

SOCKET_BUFFER = 4 << 20
SILENCE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
"""Seconds of silence until the peer's kernel is asked, seconds between questions, and how many may stay unanswered.

A link whose path is lost without a reset, also in one direction only, is noticed by its receiving end after 5 s. The
sending end has data under way and would ask for a quarter of an hour; no limit is set on that, since data also stays
under way while a healthy peer computes and does not read.
"""


class LinkBroken(ReknitError):
    """The connection to a neighbour is gone.

    Attributes:
        side: "previous" or "next".
        orderly: the peer said BYE before it closed.
    """

    def __init__(self, side: str, reason: str, *, orderly: bool = False) -> None:
        super().__init__(f"link to the {side} worker: {reason}")
        self.side = side
        self.reason = reason
        self.orderly = orderly


class Link:
    """A link to the previous or the next worker of one generation.

    A send is tried at once in the calling thread; what the kernel does not take goes through the link's sender thread
    (started when first needed), so a slow peer never blocks the caller.
    """

    def __init__(self, sock: socket.socket, side: str, generation: int, on_error: Callable[[], None]) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in SILENCE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.side = side
        self.generation = generation
        self.issued = 0
        self.done = 0
        self._sock = sock
        self._on_error = on_error
        self._aborted = False
        self._queue: collections.deque[tuple[int, list[memoryview]]] = collections.deque()
        self._cv = threading.Condition()
        self._sender: threading.Thread | None = None
        self._closing = False
        self.closed = False
        self.failure = ""
        self._header = bytearray(frames.HEADER.size)

    @property
    def aborted(self) -> bool:
        """True once the link was given up."""
        return self._aborted

    # ------------------------------------------------------------------------------------------------ sending

    def send(self, kind: Kind, step: int, piece: int, coverage: int, payload: memoryview | bytes = b"") -> int:
        """Send one frame, in order, without blocking.

        Returns:
            The frame's ticket: the payload may be changed once `done` has reached it.

        Raises:
            LinkBroken: the connection failed.
        """
        view = memoryview(payload).cast("B") if len(payload) else memoryview(b"")
        header = Header(kind, self.generation, step, piece, coverage, view.nbytes).pack()
        parts = [memoryview(header), view] if view.nbytes else [memoryview(header)]
        self.issued += 1
        ticket = self.issued
        with self._cv:
            if self._aborted:
                raise LinkBroken(self.side, "aborted")
            if not self._queue and self.done == ticket - 1:
                try:
                    parts = _skip(parts, self._sock.sendmsg(parts, (), socket.MSG_DONTWAIT))
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise LinkBroken(self.side, _text(error)) from error
                if not parts:
                    self.done = ticket
                    return ticket
            self._queue.append((ticket, parts))
            if self._sender is None:
                self._sender = threading.Thread(target=self._run, name=f"ring-send-{self.side}", daemon=True)
                self._sender.start()
            self._cv.notify_all()
        return ticket

    def _run(self) -> None:
        while True:
            with self._cv:
                while not self._queue and not self._closing and not self._aborted:
                    self._cv.wait()
                if self._aborted or (self._closing and not self._queue):
                    return
                ticket, parts = self._queue[0]
            try:
                while parts:
                    parts = _skip(parts, self._sock.sendmsg(parts))
            except OSError as error:
                if not self._aborted:
                    self.failure = _text(error)
                self.abort()
                self._on_error()
                return
            with self._cv:
                self._queue.popleft()
                self.done = ticket
                self._cv.notify_all()

    # ---------------------------------------------------------------------------------------------- receiving

    def receive_header(self) -> Header:
        """Wait for the next frame's header.

        Raises:
            LinkBroken: the connection failed, was aborted, or the peer said BYE (`orderly`).
        """
        self._receive(memoryview(self._header))
        try:
            header = frames.unpack(self._header)
        except WireError as error:
            raise LinkBroken(self.side, str(error)) from error
        if header.generation != self.generation:
            raise LinkBroken(self.side, f"frame of generation {header.generation} in {self.generation}")
        if header.kind is Kind.BYE:
            raise LinkBroken(self.side, "finished", orderly=True)
        return header

    def receive_into(self, view: memoryview) -> None:
        """Fill `view` with payload bytes."""
        self._receive(view)

    def receive_payload(self, header: Header) -> bytes:
        """Receive a frame's whole payload as new bytes."""
        data = bytearray(header.length)
        self._receive(memoryview(data))
        return bytes(data)

    def _receive(self, view: memoryview) -> None:
        while view.nbytes:
            try:
                count = self._sock.recv_into(view, view.nbytes, socket.MSG_WAITALL)
            except OSError as error:
                raise LinkBroken(self.side, "aborted" if self._aborted else _text(error)) from error
            if count == 0:
                raise LinkBroken(self.side, "aborted" if self._aborted else "closed by the peer")
            view = view[count:]

    # ------------------------------------------------------------------------------------------------- ending

    def bye(self, step: int) -> None:
        """Tell the peer that the run is over for us, after all sends; errors do not matter any more."""
        with contextlib.suppress(LinkBroken):
            self.send(Kind.BYE, step, 0, 0)
            self.drain(5.0)

    def interrupt(self) -> None:
        """Free a thread that is blocked in receiving, without telling the peer anything."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def drain(self, seconds: float) -> bool:
        """Wait until all sends are with the kernel; False after `seconds` or when the link is gone."""
        with self._cv:
            return self._cv.wait_for(lambda: self._aborted or not self._queue, seconds) and not self._aborted

    def abort(self) -> None:
        """Shut down at once; every thread blocked on the link gets `LinkBroken`. Safe from any thread, idempotent."""
        self._aborted = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._cv:
            self._queue.clear()
            self._cv.notify_all()

    def close(self) -> None:
        """Abort, end the sender thread and free the descriptor."""
        self.abort()
        if self._sender is not None and self._sender is not threading.current_thread():
            self._sender.join()
        self._sock.close()
        self.closed = True


def _skip(parts: list[memoryview], count: int) -> list[memoryview]:
    rest = []
    for part in parts:
        if count >= part.nbytes:
            count -= part.nbytes
        else:
            rest.append(part[count:])
            count = 0
    return rest


def _text(error: OSError) -> str:
    return f"{error.strerror or type(error).__name__} (errno {error.errno})"
