"""Making a group of a collective library while the links are watched: its constructor blocks, the engine must not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from reknit.core.errors import ReknitError
from reknit.worker.ring.link import Link
from reknit.worker.ring.token import circulate

from .group import CollectiveFailed
from .meeting import Meeting
from .watch import Watch


class Unusable(ReknitError):
    """The collective library does not start on this machine: trying again would not help."""


class Making(threading.Thread):
    """A thread that makes a process group of torch.

    Args:
        make: makes it, given the store to meet in.
        name: of the thread.
        wake: called when something has happened.

    Attributes:
        meeting: the store.
        made: the process group, None until it is made.
        error: why it could not be made.
        over: one or the other.
        addresses: what each member wrote, in order of rank, once that is known.
    """

    def __init__(self, make: Callable[[Meeting], Any], name: str, wake: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.meeting = Meeting(wake)
        self.made: Any = None
        self.error: Exception | None = None
        self.over = False
        self.addresses: tuple[bytes, ...] = ()
        self._make, self._wake = make, wake

    def run(self) -> None:
        """Make it."""
        try:
            self.made = self._make(self.meeting)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the thread that waits
            self.error = error
        self.over = True
        self._wake()

    def together(self, rank: int, size: int, *, previous: Link, following: Link, watch: Watch) -> None:
        """Make it with all members of the ring; each calls this at the same point of what it sends.

        Args:
            rank: place in the ring.
            size: members.
            previous: link to the previous member, idle.
            following: link to the next member, idle.
            watch: of these links.

        Raises:
            LinkBroken: a neighbour is gone.
            WorldMoved: a newer world arrived meanwhile.
            CollectiveFailed: the members did not come together.
            Unusable: the library does not start here.
        """
        self.start()
        watch.until(lambda: self.meeting.offer is not None or self.over)
        offer = self.meeting.offer
        # who has nothing to offer because the library did not start says so, or the others would wait for it
        plain = None if offer is None else [[key, value] for key, value in offer.items()]
        told = circulate(rank, size, previous, following, plain)
        if offer is None:
            raise Unusable(f"the collective library does not start here: {first_line(self.error)}")
        if any(item is None for item in told):
            raise CollectiveFailed("the collective library does not start at a peer")
        values = {str(key): bytes(value) for item in told for key, value in item}
        self.addresses = tuple(b"".join(bytes(value) for _, value in item) for item in told)
        self.meeting.answer(values)
        watch.until(lambda: self.over)
        if self.made is None:
            raise CollectiveFailed(first_line(self.error))


def first_line(error: Exception | None) -> str:
    """What an error says, without the stack that C++ adds to it."""
    return str(error).strip().partition("\n")[0] if error is not None else "no reason was given"
