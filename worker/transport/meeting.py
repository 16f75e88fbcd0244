"""The store through which the members of a group find each other: the ring's own links carry what they write.

torch.distributed meets in a key-value store. A store of its own for each generation has no old keys to trip over, and
this one needs no server, no port and no thread. What a member writes before it first reads goes to all, as one token
that goes round the ring twice: gloo writes its address and reads everybody's, NCCL's first member writes an id and the
others read it. So a group is made only by members that are linked, in the generation they are linked in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta

from torch._C._distributed_c10d import Store

from reknit.core.errors import ReknitError


class MeetingFailed(ReknitError):
    """The members of a group did not find each other."""


class Meeting(Store):
    """A store for what members tell each other once: `offer` is what this one has, `answer` brings everybody's.

    Args:
        offered: called once the offer is there, on the thread that makes the group.

    Attributes:
        offer: what this member has written, None until it has written or wants to read.
    """

    def __init__(self, offered: Callable[[], None]) -> None:
        super().__init__()
        self.offer: dict[str, bytes] | None = None
        self._offered = offered
        self._values: Mapping[str, bytes] | None = None
        self._over = threading.Event()

    def answer(self, values: Mapping[str, bytes] | None) -> None:
        """What all members have written, or None: the meeting is off."""
        self._values = values
        self._over.set()

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value. Only the first one reaches the others; a group that is at work has nothing to tell."""
        if self.offer is None:
            self.offer = {key: value.encode() if isinstance(value, str) else bytes(value)}
            self._offered()

    def get(self, key: str) -> bytes:
        """Read a value; waits until everybody's are there."""
        if self.offer is None:
            self.offer = {}
            self._offered()
        self._over.wait()
        if self._values is None:
            raise MeetingFailed("the ring broke while a group was being made")
        if key not in self._values:
            raise MeetingFailed(f"no member of the group has written {key!r}")
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002 - the store's signature
        """Wait for keys; how long is for those to say who answer."""
        for key in keys:
            self.get(key)
