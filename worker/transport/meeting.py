"""The store through which the members of a group tell each other their addresses: the ring's own links carry them.

torch.distributed meets in a key-value store. A store of its own for each generation has no old keys to trip over, and
this one needs no server, no port and no thread: a group writes one value and reads everybody's, which is one token
going round the ring twice. So a group is made only by members that are linked, in the generation they are linked in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store

from reknit.core.errors import ReknitError


class MeetingFailed(ReknitError):
    """The members of a group did not find each other."""


class Meeting(Store):
    """A store for one value a member: `offer` is this member's, `answer` brings all.

    Args:
        rank: this member.
        size: members.
        offered: called once this member's value is there, on the thread that makes the group.

    Attributes:
        offer: this member's value, None as long as it is not written.
    """

    def __init__(self, rank: int, size: int, offered: Callable[[], None]) -> None:
        super().__init__()
        self.offer: bytes | None = None
        self._rank = rank
        self._size = size
        self._offered = offered
        self._prefix = ""
        self._values: Sequence[bytes] | None = None
        self._over = threading.Event()

    def answer(self, values: Sequence[bytes] | None) -> None:
        """Everybody's values in order of rank, or None: the meeting is off."""
        self._values = values
        self._over.set()

    def set(self, key: str, value: str | bytes) -> None:
        """Keep this member's value."""
        prefix, _, number = key.rpartition("/")
        if self.offer is not None or number != str(self._rank):
            raise MeetingFailed(f"a group was to write one value, under its own rank, not {key!r}")
        self._prefix = prefix
        self.offer = value.encode() if isinstance(value, str) else bytes(value)
        self._offered()

    def get(self, key: str) -> bytes:
        """The value of a rank; waits until everybody's are there."""
        self._over.wait()
        prefix, _, number = key.rpartition("/")
        if self._values is None:
            raise MeetingFailed("the ring broke while a group was being made")
        if prefix != self._prefix or not number.isdigit() or int(number) >= self._size:
            raise MeetingFailed(f"a group was to read the values of its members, not {key!r}")
        return self._values[int(number)]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002 - the store's signature
        """Wait for keys; how long is for those to say who answer."""
        for key in keys:
            self.get(key)
