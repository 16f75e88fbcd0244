"""A TCP proxy on threads that spoils what passes from a member to whoever called it: cuts, freezes, flips a bit."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import msgspec

from reknit.core.events import Member


class Meddler:
    """Passes bytes on both ways between callers and one member; give callers `member`.

    Attributes:
        member: the member under the proxy's address.
        flip_at: byte of the member's side of a connection to spoil once, -1 for none. (A hello is under 400 bytes.)
        stop_at: after so many bytes of the member's side nothing is passed on any more, -1: everything is.
        passed: most bytes of the member's side that any connection has had.
        flipped: a byte was spoiled.
        calls: connections made.
    """

    def __init__(self, member: Member) -> None:
        self._target = member.address.rpartition(":")
        self._server = socket.create_server(("127.0.0.1", 0))
        self.member = msgspec.structs.replace(member, address=f"127.0.0.1:{self._server.getsockname()[1]}")
        self.flip_at = -1
        self.stop_at = -1
        self.passed = 0
        self.flipped = False
        self.calls = 0
        self._going = threading.Event()
        self._socks: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._start(self._accept)

    def cut(self) -> None:
        """Break all connections, with a reset."""
        for sock in list(self._socks):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._going.set()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._threads[0].join(10)
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for sock in self._socks:
            sock.close()

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                caller, _ = self._server.accept()
                member = socket.create_connection((self._target[0], int(self._target[2])))
            except OSError:
                continue
            self.calls += 1
            self._socks += [caller, member]
            self._start(self._pass, caller, member, False)
            self._start(self._pass, member, caller, True)

    def _pass(self, source: socket.socket, sink: socket.socket, spoiled: bool) -> None:
        at = 0
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if spoiled:
                    if 0 <= self.stop_at < at + len(data):
                        sink.sendall(data[: max(0, self.stop_at - at)])
                        self.passed = max(self.passed, self.stop_at)
                        self._going.wait()
                        break
                    if 0 <= self.flip_at - at < len(data) and not self.flipped:
                        data[self.flip_at - at] ^= 4
                        self.flipped = True
                sink.sendall(data)
                at += len(data)
                if spoiled:
                    self.passed = max(self.passed, at)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
