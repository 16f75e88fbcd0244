"""The connections that a group holds, found among this process's descriptors by the addresses its members exchanged.

gloo gives no way to end a collective: `abort` and `shutdown` return, and the collective goes on waiting for a peer that
is frozen. Shutting its connections down ends it at once. They are recognised by address: one end of each is a listening
address of a member, and those are in the values that the members exchanged (see `meeting`), byte for byte.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LISTENING = 10


def shut_down(mine: bytes, others: Sequence[bytes]) -> int:
    """Shut down this process's connections to a group's members; listening sockets stay as they are.

    (A listening socket must stay: gloo ends the process when one of its own fails. And only a connection of the group
    is ever touched: a socket object of Python made from any other might change the mode that its owner has set.)

    Args:
        mine: what this member told the others: it holds the address that it listens at.
        others: what they told.

    Returns:
        How many connections were shut down.
    """
    wanted = {
        inode for local, remote, inode in _connections() if local in mine or any(remote in other for other in others)
    }
    count = 0
    for number in os.listdir(_DESCRIPTORS) if wanted else ():  # noqa: PTH208 - numbers are wanted, not paths
        with contextlib.suppress(OSError):  # closed meanwhile
            copy = os.dup(int(number))
            status = os.fstat(copy)
            if not stat.S_ISSOCK(status.st_mode) or status.st_ino not in wanted:
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as connection:
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _connections() -> Iterator[tuple[bytes, bytes, int]]:
    """Each TCP connection of this network namespace: its two addresses as they lie in memory, and its inode."""
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # no IPv6 here
            continue
        for line in lines:
            _, local, remote, state, *_, inode = line.split()[:10]
            if int(state, 16) != _LISTENING:
                yield _packed(local), _packed(remote), int(inode)


def _packed(address: str) -> bytes:
    """`0100007F:1F90` as the kernel lays it out: family, port, host; with IPv6 a flow label between the last two."""
    host, port = address.split(":")
    words = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    if len(words) == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H", int(port, 16)) + words
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", int(port, 16), 0) + words
