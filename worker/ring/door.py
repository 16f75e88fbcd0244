"""The door: how a listener finds out that a dialer is on its own host, and gets the memory that they will share.

It is an abstract Unix datagram socket with a random name, which the listener tells in its hello. Such a name means
something only inside one network namespace: who can send a datagram there is on this host, and not behind a network
that only looks as if it were. The dialer sends a random token and the descriptors of a lane, and repeats the token in
its hello, with its proof. Whoever else sends something to the door wastes only its own time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading

from .lane import Incoming, Outgoing

_FD = struct.Struct("i")
_TOKEN = 16
_WAITING = 32
"""Lanes kept for hellos that have yet to name them; older ones are dropped."""


class Door:
    """The listener's side; a closed door has no name.

    Attributes:
        name: to be told to dialers; empty where the system has no such sockets.
    """

    def __init__(self) -> None:
        self.name = ""
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[int]] = {}
        self._sock: socket.socket | None = None
        name = f"reknit-{secrets.token_hex(12)}"
        with contextlib.suppress(OSError, AttributeError):
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._sock.bind(f"\0{name}")
            self.name = name

    def take(self, token: bytes) -> Incoming | None:
        """Take the lane that a dialer has sent with this token, None if it has not or it is of no use."""
        with self._lock:
            self._look()
            descriptors = self._waiting.pop(token, [])
        if len(descriptors) != 2:
            _close(descriptors)
            return None
        try:
            return Incoming(*descriptors)
        except OSError:
            return None

    def close(self) -> None:
        """Close the door and everything that came through it and was not taken."""
        with self._lock:
            self.name = ""
            if self._sock is not None:
                self._look()
                self._sock.close()
                self._sock = None
            for descriptors in self._waiting.values():
                _close(descriptors)
            self._waiting.clear()

    def _look(self) -> None:
        while self._sock is not None:
            try:
                token, extra, _, _ = self._sock.recvmsg(
                    _TOKEN, socket.CMSG_SPACE(2 * _FD.size), socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                return
            descriptors = [fd for _, _, data in extra for (fd,) in _FD.iter_unpack(data[: len(data) // 4 * 4])]
            if len(token) == _TOKEN and descriptors:
                _close(self._waiting.pop(token, []))
                self._waiting[token] = descriptors
            else:
                _close(descriptors)
            while len(self._waiting) > _WAITING:
                _close(self._waiting.pop(next(iter(self._waiting))))


class Offer:
    """The dialer's side: made for one hello.

    Attributes:
        lane: what was offered, until it is clear whether the listener has taken it.
    """

    def __init__(self) -> None:
        self.lane: Outgoing | None = None

    def __call__(self, name: str) -> bytes:
        """Send a new lane to the door of this name; returns the token, empty if it cannot be reached from here."""
        if not name:
            return b""
        token = secrets.token_bytes(_TOKEN)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.connect(f"\0{name}")
                self.lane = Outgoing()
                socket.send_fds(sock, [token], self.lane.descriptors)
        except OSError:
            self.settle(taken=False)
            return b""
        return token

    def settle(self, *, taken: bool) -> Outgoing | None:
        """Return the lane if the listener has taken it, else free it."""
        lane, self.lane = self.lane, None
        if lane is not None and taken:
            lane.handed_over()
            return lane
        if lane is not None:
            lane.close()
        return None


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
