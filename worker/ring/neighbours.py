"""Both links of a worker in one generation: made together, broken together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reknit.core.events import Member

from .hello import Hello
from .link import Link
from .linking import WorldMoved, link_next, take_previous
from .listener import Listener

_SLICE = 0.05
"""Seconds between looks at whether the world has moved on."""


class Neighbours:
    """The links to the previous and to the next worker; both None in a world of one.

    Args:
        job, worker, secret: who we are.
        listener: our listener, None if this worker can only be alone.
        wait: blocks up to so many seconds, until something arrived or the world moved (may return early).
        moved: True once a newer world exists.
    """

    def __init__(
        self,
        job: str,
        worker: str,
        secret: str,
        *,
        listener: Listener | None,
        wait: Callable[[float], None],
        moved: Callable[[], bool],
    ) -> None:
        self.previous: Link | None = None
        self.following: Link | None = None
        self._job, self._worker, self._secret = job, worker, secret
        self._listener = listener
        self._wait = wait
        self._moved = moved

    def link(self, members: Sequence[Member], incarnation: int, generation: int) -> None:
        """Close the links that are there, dial the next worker and take the connection of the previous one.

        Raises:
            WorldMoved: a newer world arrived meanwhile.
            LinkBroken: the next worker's port is closed, or it refused us.
        """
        self.close()
        if len(members) == 1:
            return
        assert self._listener is not None
        place = [m.worker for m in members].index(self._worker)
        previous, following = members[place - 1], members[(place + 1) % len(members)]
        self._listener.forget_before(generation)
        greeting = Hello(self._job, "ring", generation, self._worker, incarnation, following.worker)
        self.following = link_next(
            following.address,
            greeting,
            self._secret,
            self._send_failed,
            self._moved,
            lanes=self._listener.lanes,
        )
        self.previous = take_previous(
            self._listener,
            generation,
            previous.worker,
            on_error=self._send_failed,
            wait=self._wait,
            moved=self._moved,
        )
        if self._moved():
            raise WorldMoved("a newer world arrived while linking")

    def drain(self) -> None:
        """Wait until everything that was sent is with the kernel, as long as the link holds and the world stays."""
        following = self.following
        while following is not None and not following.drain(_SLICE):
            if following.aborted or self._moved():
                return

    def bye(self, step: int) -> None:
        """Tell the next worker that the run is over for us."""
        if self.following is not None:
            self.following.bye(step)

    def abort(self, before: int | None = None) -> None:
        """Give up links of generations before this one (all, if None); safe from any thread."""
        for link in (self.previous, self.following):
            if link is not None and (before is None or link.generation < before):
                link.abort()

    def close(self) -> None:
        """Close both links and free what they hold."""
        for link in (self.previous, self.following):
            if link is not None:
                link.close()
        self.previous = self.following = None

    def _send_failed(self) -> None:
        # called by a sender thread: frees the engine, which waits at the other link; that peer is not to blame
        previous = self.previous
        if previous is not None:
            previous.interrupt()
