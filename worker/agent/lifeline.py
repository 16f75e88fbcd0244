"""A lock that a worker holds for its whole life, and that the kernel lets go of when it begins to end the process.

    agent:  line = Lifeline.make()      ── in the order, through the forkserver ──►      worker:  line.hold()
            line.broken(seconds)        blocks, without the interpreter's lock, until the worker's main thread is gone

It is a robust, process-shared pthread mutex in a page of memory that both map. Robust locks are the first thing the
kernel takes from a process that ends; then it frees the memory (tens of milliseconds for hundreds of megabytes),
closes the sockets, and only after that is there something to reap. So whoever waits for the lock knows first.

An `exec` lets go of it too. A fork of the worker does not have it, nor does it keep it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, Self

_PAGE = mmap.PAGESIZE
_HOLDER = 2048
"""Where in the page the holder notes its pid; a mutex takes some 40 bytes."""
_NOTE = _HOLDER + 8
_SHARED = _ROBUST = 1
_PROOF_SECONDS = 1.0


class Lifeline:
    """One end of the lock; made by the agent, pickled into the worker's order.

    Pickling works only while a process is being spawned. Each side's page is its own to close.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        # not Python's mmap: it keeps another descriptor, and unmaps the page when the interpreter likes
        page = self._libc.mmap(None, _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if page in (None, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            raise OSError(number, f"mmap: {os.strerror(number)}")
        self._page: int = page
        self._mutex = ctypes.c_void_p(page)
        self._holder = ctypes.c_int.from_address(page + _HOLDER)
        self._note = ctypes.c_int64.from_address(page + _NOTE)

    @classmethod
    def make(cls) -> Self:
        """Make a lock that nobody holds yet.

        Raises:
            OSError: no memory, no descriptor, or a C library whose lock does not fit.
        """
        fd = os.memfd_create("reknit-lifeline")
        try:
            os.ftruncate(fd, _PAGE)
            line = cls(fd)
        except OSError:
            os.close(fd)
            raise
        try:
            line._initialise()
        except OSError:
            line.sent()
            line.close()
            raise
        return line

    def _initialise(self) -> None:
        kind = ctypes.create_string_buffer(256)
        _must(self._libc.pthread_mutexattr_init(kind), "pthread_mutexattr_init")
        _must(self._libc.pthread_mutexattr_setpshared(kind, _SHARED), "pthread_mutexattr_setpshared")
        _must(self._libc.pthread_mutexattr_setrobust(kind, _ROBUST), "pthread_mutexattr_setrobust")
        _must(self._libc.pthread_mutex_init(self._mutex, kind), "pthread_mutex_init")
        self._libc.pthread_mutexattr_destroy(kind)
        if any(ctypes.string_at(self._page + _HOLDER // 2, _PAGE - _HOLDER // 2)):
            raise OSError(errno.ENOTSUP, "this C library's locks are larger than known")

    def __reduce__(self) -> tuple[Callable[[Any], Lifeline], tuple[Any]]:
        return _arrived, (reduction.DupFd(self._fd),)

    @property
    def holder(self) -> int:
        """Pid of the process that has taken the lock, 0 if none has so far."""
        return int(self._holder.value)

    @property
    def note(self) -> int:
        """A number that the holder leaves to whoever waits; 0: none."""
        return int(self._note.value)

    @note.setter
    def note(self, number: int) -> None:
        self._note.value = number

    def fileno(self) -> int:
        """Descriptor of the page's memory, until `sent`."""
        return self._fd

    def hold(self) -> None:
        """Take the lock for ever; from the thread whose end shall be the end of the process.

        Raises:
            OSError: it cannot be taken.
        """
        _must(self._libc.pthread_mutex_lock(self._mutex), "pthread_mutex_lock")
        self._holder.value = os.getpid()

    def broken(self, seconds: float) -> bool:
        """Wait until the holder has let go of it by ending, or by an exec; False when the time is over.

        Raises:
            OSError: the lock cannot be waited for.
        """
        until = time.time() + seconds  # the only clock that this call knows
        at = (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9))
        code = int(self._libc.pthread_mutex_timedlock(self._mutex, at))
        if code == errno.ETIMEDOUT:
            return False
        if code == errno.EOWNERDEAD:
            self._libc.pthread_mutex_consistent(self._mutex)
        elif code != 0:
            _must(code, "pthread_mutex_timedlock")
        self._libc.pthread_mutex_unlock(self._mutex)
        return code == errno.EOWNERDEAD

    def sent(self) -> None:
        """Close the descriptor, once the lock is with the worker; the page stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Give the page back; nobody may wait or hold here any more."""
        if self._page:
            self._libc.munmap(self._mutex, ctypes.c_size_t(_PAGE))
            self._page = 0


def why_not() -> str:
    """Why there can be no lifelines on this machine; empty if a thread's end was noticed just now."""
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return "not the GNU C library"
        line = Lifeline.make()
        line.sent()
        ending = threading.Thread(target=line.hold, name="lifeline-proof")
        ending.start()
        ending.join()
        if line.holder and line.broken(_PROOF_SECONDS):
            line.close()
            return ""
    except (OSError, ValueError, AttributeError) as error:  # AttributeError: the C library has no such function
        return f"{type(error).__name__}: {error}"
    # the page stays: whatever the thread left there, nothing may be unmapped below it
    return "this kernel does not tell that a lock's owner has ended"


def _arrived(sent: Any) -> Lifeline:
    line = Lifeline(sent.detach())
    line.sent()
    return line


def _must(code: int, what: str) -> None:
    if code != 0:
        raise OSError(code, f"{what}: {os.strerror(code)}")
