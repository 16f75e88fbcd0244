"""One TCP connection to a ring neighbour: ordered sends that never block, receives that can be aborted at once.

Use: `link.send(...)` returns a ticket; a buffer handed in must stay unchanged until `link.done >= ticket`.
`link.abort()` may be called from any thread: it shuts the socket down, which frees every blocked thread.

Between two workers of one host, larger payloads pass through memory that both share (`lane`); headers, small payloads
and the end of the peer still come through the socket. Then a payload can be made where the next worker reads it
(`reserve`, `send_reserved`) and used where the worker before has put it (`payload`, `release`).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable

import numpy as np

from reknit.core.errors import ReknitError, WireError

from . import frames, lane
from .frames import Header, Kind
from .pieces import Buffer

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
        unmade: there was no connection yet, and there is none to be had.
    """

    def __init__(self, side: str, reason: str, *, orderly: bool = False, unmade: bool = False) -> None:
        super().__init__(f"link to the {side} worker: {reason}")
        self.side = side
        self.reason = reason
        self.orderly = orderly
        self.unmade = unmade


class Link:
    """A link to the previous or the next worker of one generation.

    A send is tried at once in the calling thread; what cannot go goes through the link's sender thread (started when
    first needed), so a slow peer never blocks the caller.

    Args:
        sock: the connection, after its hello.
        side: "previous" or "next".
        generation: of the world that it belongs to.
        on_error: called by the sender thread when the connection fails.
        outgoing, incoming: the lane for what is sent, or received; None: all goes through the socket.
    """

    def __init__(
        self,
        sock: socket.socket,
        side: str,
        generation: int,
        on_error: Callable[[], None],
        *,
        outgoing: lane.Outgoing | None = None,
        incoming: lane.Incoming | None = None,
    ) -> None:
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
        self._outgoing = outgoing
        self._incoming = incoming
        self._in_lane = False
        self._check = 0
        self._queue: collections.deque[_Frame] = collections.deque()
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
        in_lane = self._outgoing is not None and lane.LEAST <= view.nbytes <= lane.CHUNK
        check = 0 if in_lane else frames.check_of(view)
        header = memoryview(Header(kind, self.generation, step, piece, coverage, view.nbytes, in_lane, check).pack())
        if in_lane:
            return self._issue(_Frame([header], view))
        return self._issue(_Frame([header, view] if view.nbytes else [header]))

    def reserve(self, size: int) -> Buffer | None:
        """Give a place in the lane for the next payload, to be written now and sent by `send_reserved`.

        Returns:
            The place, `size` bytes; None if there is no lane, no chunk of it is free or frames are waiting: then the
            payload is made elsewhere and sent by `send`.
        """
        if self._outgoing is None or not lane.LEAST <= size <= lane.CHUNK or self.done != self.issued:
            return None
        return self._outgoing.chunk(size)

    def send_reserved(self, kind: Kind, step: int, piece: int, coverage: int, size: int) -> int:
        """Send what was written into the place that `reserve` gave; see `send`."""
        assert self._outgoing is not None
        self._outgoing.filled()
        header = memoryview(Header(kind, self.generation, step, piece, coverage, size, lane=True).pack())
        return self._issue(_Frame([header]))

    def _issue(self, frame: _Frame) -> int:
        self.issued += 1
        frame.ticket = self.issued
        with self._cv:
            if self._aborted:
                raise LinkBroken(self.side, "aborted")
            if not self._queue and self.done == frame.ticket - 1 and self._try(frame):
                self.done = frame.ticket
                return frame.ticket
            self._queue.append(frame)
            if self._sender is None:
                self._sender = threading.Thread(target=self._run, name=f"ring-send-{self.side}", daemon=True)
                self._sender.start()
            self._cv.notify_all()
        return frame.ticket

    def _try(self, frame: _Frame) -> bool:
        """Send without blocking; False if something of the frame is left."""
        if not self._place(frame):
            return False
        try:
            frame.parts = _skip(frame.parts, self._sock.sendmsg(frame.parts, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        except OSError as error:
            raise LinkBroken(self.side, _text(error)) from error
        return not frame.parts

    def _place(self, frame: _Frame) -> bool:
        """Copy a payload that goes through the lane into it; False while no chunk is free."""
        if frame.for_lane is None:
            return True
        assert self._outgoing is not None
        place = self._outgoing.chunk(frame.for_lane.nbytes)
        if place is None:
            return False
        place[:] = np.frombuffer(frame.for_lane, np.uint8)
        self._outgoing.filled()
        frame.for_lane = None
        return True

    def _run(self) -> None:
        while True:
            with self._cv:
                while not self._queue and not self._closing and not self._aborted:
                    self._cv.wait()
                if self._aborted or (self._closing and not self._queue):
                    return
                frame = self._queue[0]
            try:
                while not self._place(frame):
                    assert self._outgoing is not None
                    self._outgoing.wait(self._sock)
                while frame.parts:
                    frame.parts = _skip(frame.parts, self._sock.sendmsg(frame.parts))
            except OSError as error:
                if not self._aborted:
                    self.failure = _text(error)
                self.abort()
                self._on_error()
                return
            with self._cv:
                if not self._queue:  # aborted meanwhile
                    return
                self._queue.popleft()
                self.done = frame.ticket
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
        if header.lane and (self._incoming is None or not lane.LEAST <= header.length <= lane.CHUNK):
            raise LinkBroken(self.side, f"protocol: {header} is not for the lane")
        self._in_lane, self._check = header.lane, header.check
        return header

    def receive_into(self, view: memoryview) -> None:
        """Fill `view`, as long as the payload is, with the payload of the header just received."""
        if not self._in_lane:
            self._receive_checked(view)
            return
        assert self._incoming is not None
        np.frombuffer(view, np.uint8)[:] = self._incoming.payload(view.nbytes)
        self.release()

    def receive_payload(self, header: Header) -> bytes:
        """Receive a frame's whole payload as new bytes."""
        data = bytearray(header.length)
        self.receive_into(memoryview(data))
        return bytes(data)

    def payload(self, place: Buffer) -> Buffer:
        """Receive the payload of the header just received, without copying it if it is in the lane.

        Args:
            place: where it goes otherwise; as long as the payload is.

        Returns:
            Where it is: in the lane, read-only and only until `release`, or in `place`.
        """
        if self._incoming is not None and self._in_lane:
            return self._incoming.payload(place.nbytes)
        self._receive_checked(place.data)
        return place

    def release(self) -> None:
        """What `payload` gave is not needed any more."""
        if self._incoming is not None and self._in_lane:
            self._in_lane = False
            self._incoming.release()

    def _receive_checked(self, view: memoryview) -> None:
        self._receive(view)
        if frames.check_of(view) != self._check:
            raise LinkBroken(self.side, "a payload was damaged on its way")

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

    def fileno(self) -> int:
        """Descriptor of the socket, for waiting; -1 once closed."""
        return self._sock.fileno()

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
        for end in (self._outgoing, self._incoming):
            if end is not None:
                end.close()
        self.closed = True


@dataclasses.dataclass(slots=True)
class _Frame:
    """A frame that is being sent: what is left for the socket, and what must be in the lane before that."""

    parts: list[memoryview]
    for_lane: memoryview | None = None
    ticket: int = 0


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
