"""How a learner gets the state from a peer, while the ring goes on: a connection of its own, hashed end to end.

    learner -> {at_least}                      the copy must be of the beginning of this step or of a later one
    teacher -> {step, chain, layout, ledger, bytes, hash}, then the bytes

A message is a u32 length and msgpack; `hash` is xxh3-128 over the bytes.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import struct
import threading
from typing import Any

import xxhash

from reknit.core import wire
from reknit.core.errors import ReknitError, WireError
from reknit.core.events import Member

from .exchange import CopyWanted, Exchange, StateCopy
from .ring import hello
from .ring.hello import Hello, Refused
from .ring.listener import Listener

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE = 64 << 20
_SLICE = 8 << 20
_SILENCE = 10.0
"""Seconds without a byte until a transfer is given up and asked for again."""
_RETRY = 0.1


class TransferFailed(ReknitError):
    """The state did not arrive whole; it is asked for again."""


class Learner:
    """Fetches the state in the background, again and again until it fits."""

    def __init__(self, job: str, worker: str, secret: str, shared: Exchange) -> None:
        self._job, self._worker, self._secret = job, worker, secret
        self._shared = shared
        self._lesson: tuple[Member, int, int] | None = None
        self._thread: threading.Thread | None = None
        self._sock: socket.socket | None = None
        self._closed = False
        self.failures: list[str] = []

    def learn(self, teacher: Member, generation: int, at_least: int) -> None:
        """From now on learn from this member; results from step `at_least` on are being queued."""
        with self._shared.cv:
            self._lesson = (teacher, generation, at_least)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ring-learn", daemon=True)
                self._thread.start()
            self._shared.cv.notify_all()

    def close(self) -> None:
        """Give up; the session is over."""
        with self._shared.cv:
            self._lesson, self._closed = None, True
            self._shared.cv.notify_all()
            if self._sock is not None:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        shared = self._shared
        while True:
            with shared.cv:
                while self._lesson is None and not self._closed:
                    shared.cv.wait()
                lesson = self._lesson
            if lesson is None:
                return
            try:
                copy = self._fetch(*lesson)
            except (Refused, OSError, TransferFailed, WireError) as error:
                self.failures = [*self.failures[-15:], f"{lesson[0].worker}: {error}"]
                with shared.cv:
                    if self._lesson is lesson:
                        shared.cv.wait(_RETRY)
                continue
            with shared.cv:
                # the ring may have been mended meanwhile: then older results were dropped, and the copy may be too old
                if self._lesson is not None and copy.step >= self._lesson[2]:
                    self._lesson = None
                    shared.take_in(copy)

    def _fetch(self, teacher: Member, generation: int, at_least: int) -> StateCopy:
        host, _, port = teacher.address.rpartition(":")
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout=_SILENCE)
        with sock:
            with self._shared.cv:
                self._sock = sock
            try:
                greeting = Hello(self._job, "state", generation, self._worker, self._shared.incarnation, teacher.worker)
                hello.dial(sock, greeting, self._secret)
                _send(sock, {"at_least": at_least})
                sock.settimeout(None)  # the teacher answers when its script is between two micro-batches
                head = _receive(sock)
                sock.settimeout(_SILENCE)
                memory = memoryview(mmap.mmap(-1, max(1, int(head["bytes"]))))[: int(head["bytes"])]
                digest = xxhash.xxh3_128()
                at = 0
                while at < len(memory):
                    count = sock.recv_into(memory[at : at + _SLICE])
                    if not count:
                        raise TransferFailed(f"closed after {at} of {len(memory)} bytes")
                    digest.update(memory[at : at + count])
                    at += count
                if digest.digest() != head["hash"]:
                    raise TransferFailed("the bytes do not fit their hash")
                return StateCopy(
                    int(head["step"]), int(head["chain"]), bytes(head["layout"]), memory, bytes(head["ledger"])
                )
            except (KeyError, TypeError, ValueError) as error:
                raise TransferFailed(f"answer does not fit: {error}") from error
            finally:
                with self._shared.cv:
                    self._sock = None


class Teacher:
    """Answers learners: one thread a connection, the copy itself is made by the main thread."""

    def __init__(self, shared: Exchange) -> None:
        self._shared = shared
        self._threads: list[threading.Thread] = []

    def arrived(self, listener: Listener) -> None:
        """Serve every state connection that waits at the listener."""
        while (taken := listener.take_any("state")) is not None:
            thread = threading.Thread(target=self._serve, args=(taken[1],), name="ring-teach", daemon=True)
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()

    def close(self) -> None:
        """Wait for the threads; the session is closed, so they end."""
        for thread in self._threads:
            thread.join(1.0)

    def _serve(self, sock: socket.socket) -> None:
        shared = self._shared
        with sock, contextlib.suppress(OSError, WireError, TransferFailed, KeyError, TypeError, ValueError):
            sock.settimeout(_SILENCE)
            wanted = CopyWanted(at_least=int(_receive(sock)["at_least"]))
            with shared.cv:
                shared.copies.append(wanted)
                shared.cv.notify_all()
                while wanted.done is None:
                    if shared.closed:
                        return
                    shared.cv.wait(1.0)
            copy = wanted.done
            digest = xxhash.xxh3_128(copy.memory).digest()
            head = {
                "step": copy.step,
                "chain": copy.chain,
                "layout": copy.layout,
                "ledger": copy.ledger,
                "bytes": len(copy.memory),
                "hash": digest,
            }
            _send(sock, head)
            for at in range(0, len(copy.memory), _SLICE):
                sock.sendall(copy.memory[at : at + _SLICE])


def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    data = wire.pack(message)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _receive(sock: socket.socket) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    if length > _MAX_MESSAGE:
        raise TransferFailed(f"a message of {length} bytes")
    message = wire.unpack(_exactly(sock, length))
    if not isinstance(message, dict):
        raise TransferFailed("not a message of this protocol")
    return message


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while view.nbytes:
        part = sock.recv_into(view)
        if not part:
            raise TransferFailed("closed in the middle of a message")
        view = view[part:]
    return bytes(data)
