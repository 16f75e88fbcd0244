"""The connections that a group holds, found among this process's descriptors by the addresses its members exchanged.

gloo gives no way to end a collective: `abort` and `shutdown` return, and the collective goes on waiting for a peer that
is frozen. Shutting its connections down ends it at once. They are recognised by address: one end of each is a listening
address of a member, and those are in the values that the members exchanged (see `meeting`), byte for byte.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_LIBC = ctypes.CDLL(None, use_errno=True)
_ADDRESS = 28
"""Bytes of the longest address of interest, that of IPv6."""
_KEY: dict[int, int] = {socket.AF_INET: 8, socket.AF_INET6: 24}
"""How many bytes of an address say something: family, port and host, without padding or scope."""


def shut_down(mine: bytes, others: Sequence[bytes]) -> int:
    """Shut down this process's connections to a group's members; listening sockets stay as they are.

    (A listening socket must stay: gloo ends the process when one of its own fails. And nobody else's connection is
    touched: a socket object of Python made from one might change the mode that its owner has set.)

    Args:
        mine: what this member told the others: it holds the address that it listens at.
        others: what they told.

    Returns:
        How many connections were shut down.
    """
    count = 0
    for connection, local, remote in _connections():
        if local in mine or any(remote in other for other in others):
            count += _LIBC.shutdown(connection, socket.SHUT_RDWR) == 0
    return count


def _connections() -> Iterator[tuple[int, bytes, bytes]]:
    """A duplicate of each connected internet socket of this process, with both addresses as they lie in memory."""
    for number in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - numbers are wanted, not paths
        with contextlib.suppress(OSError):  # closed meanwhile
            copy = os.dup(int(number))
            try:
                if stat.S_ISSOCK(os.fstat(copy).st_mode):
                    local, remote = _address(_LIBC.getsockname, copy), _address(_LIBC.getpeername, copy)
                    if local and remote:
                        yield copy, local, remote
            finally:
                os.close(copy)


def _address(call: ctypes._NamedFuncPointer, descriptor: int) -> bytes:
    """What the call says, empty if nothing or no internet address."""
    place = ctypes.create_string_buffer(_ADDRESS)
    size = ctypes.c_uint32(_ADDRESS)
    if call(descriptor, place, ctypes.byref(size)) != 0:
        return b""
    family = int.from_bytes(place.raw[:2], sys.byteorder)
    return place.raw[: _KEY.get(family, 0)]
