"""A lane: memory that two workers of one host share; a link's payloads pass through it instead of through the socket.

The sender makes it (`Outgoing`) and hands two descriptors over: the memory, sealed so that it can neither shrink nor be
written by anybody else, and a counter that the receiver (`Incoming`) raises for each chunk it is done with. A chunk is
written, then its header is sent through the link's socket; so the socket still says what comes, in which order, and
when the peer is gone. A chunk is written again only after it was counted back, hence never under a reader.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import select
import socket

import numpy as np

from .frames import LARGE_PIECE
from .pieces import Buffer

CHUNK = LARGE_PIECE
CHUNKS = 16
LEAST = 16 << 10
"""Payloads of fewer bytes go through the socket: their header is half of the work."""
BATCH = 4
"""Chunks that are counted back together: each time may wake a thread of the sender."""

_FUTURE_WRITE = 0x10
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _FUTURE_WRITE | fcntl.F_SEAL_SEAL
_SIZE = CHUNK * CHUNKS
_NOTHING: Buffer = np.empty(0, np.uint8)


class Outgoing:
    """The sender's side. Not safe against use by two threads at once: its link sees to that.

    Raises:
        OSError: the system gives no such memory.
    """

    def __init__(self) -> None:
        self._memory = _NOTHING
        self._memory_fd = os.memfd_create("reknit-lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._back = -1
        try:
            os.ftruncate(self._memory_fd, _SIZE)
            # mapped before it is sealed: the one mapping that may write
            self._memory = np.frombuffer(mmap.mmap(self._memory_fd, _SIZE), np.uint8)
            fcntl.fcntl(self._memory_fd, fcntl.F_ADD_SEALS, _SEALS)
            self._back = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except (OSError, ValueError) as error:
            self.close()
            raise OSError(f"no memory to share: {error}") from error
        self._free = CHUNKS
        self._next = 0

    @property
    def descriptors(self) -> list[int]:
        """What the receiver needs; sent before `handed_over`."""
        return [self._memory_fd, self._back]

    def handed_over(self) -> None:
        """The receiver has the memory: its descriptor is not needed any more."""
        os.close(self._memory_fd)
        self._memory_fd = -1

    def chunk(self, size: int) -> Buffer | None:
        """Return where the next payload of `size` bytes (at most `CHUNK`) goes, or None while no chunk is free."""
        if not self._free:
            with contextlib.suppress(BlockingIOError):
                self._free += os.eventfd_read(self._back)
        if not self._free:
            return None
        at = self._next * CHUNK
        return self._memory[at : at + size]

    def filled(self) -> None:
        """The chunk that `chunk` gave holds its payload; its header is sent next."""
        self._free -= 1
        self._next = (self._next + 1) % CHUNKS

    def wait(self, sock: socket.socket) -> None:
        """Block until a chunk may be free.

        Raises:
            OSError: the link's socket was shut down or its peer is gone.
        """
        poll = select.poll()
        poll.register(self._back, select.POLLIN)
        poll.register(sock, select.POLLIN | select.POLLRDHUP)  # nobody sends anything this way: readable is the end
        if any(fd != self._back for fd, _ in poll.poll()):
            raise ConnectionResetError(
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or errno.ECONNRESET, "closed by the peer"
            )

    def close(self) -> None:
        """Free the descriptors; the memory goes with the last view of it."""
        for fd in (self._memory_fd, self._back):
            if fd >= 0:
                os.close(fd)
        self._memory_fd = self._back = -1
        self._memory = _NOTHING  # a mapping holds a descriptor of its own


class Incoming:
    """The receiver's side.

    Args:
        memory_fd, back: the two descriptors, from now on this object's.

    Raises:
        OSError: they are not what a lane consists of.
    """

    def __init__(self, memory_fd: int, back: int) -> None:
        self._memory = _NOTHING
        self._back = back
        try:
            seals = fcntl.fcntl(memory_fd, fcntl.F_GET_SEALS)
            if seals & _SEALS != _SEALS or os.fstat(memory_fd).st_size != _SIZE:
                raise OSError("not a lane")
            self._memory = np.frombuffer(mmap.mmap(memory_fd, _SIZE, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8)
        except (OSError, ValueError) as error:
            self.close()
            raise OSError(f"memory of the peer cannot be shared: {error}") from error
        finally:
            os.close(memory_fd)
        self._next = 0
        self._owed = 0

    def payload(self, size: int) -> Buffer:
        """Return the next payload, read-only; it stays until `release`."""
        at = self._next * CHUNK
        return self._memory[at : at + size]

    def release(self) -> None:
        """The payload is not needed any more."""
        self._next = (self._next + 1) % CHUNKS
        self._owed += 1
        if self._owed == BATCH:
            self._owed = 0
            os.eventfd_write(self._back, BATCH)

    def close(self) -> None:
        """Free the descriptor; the memory goes with the last view of it."""
        if self._back >= 0:
            os.close(self._back)
        self._back = -1
        self._memory = _NOTHING
