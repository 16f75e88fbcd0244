"""Two ends of a ring link, made as workers make theirs: dialled, introduced, accepted."""

from __future__ import annotations

import threading

from reknit.worker.ring.hello import Hello
from reknit.worker.ring.link import Link
from reknit.worker.ring.linking import link_next, take_previous
from reknit.worker.ring.listener import Listener

GENERATION = 5


def linked(*, lanes: bool) -> tuple[Link, Link]:
    """A link from worker a to worker b: a's end, to send, and b's, to receive; with a lane or without."""
    arrived = threading.Event()
    listener = Listener("job", "b", "secret", "127.0.0.1", arrived.set)
    greeting = Hello("job", "ring", GENERATION, "a", 1, "b")
    left = link_next(listener.address, greeting, "secret", lambda: None, lambda: False, lanes=lanes)
    right = take_previous(
        listener,
        GENERATION,
        "a",
        on_error=lambda: None,
        wait=lambda seconds: bool(arrived.wait(seconds)),
        moved=lambda: False,
    )
    listener.close()
    assert (left._outgoing is not None, right._incoming is not None) == (lanes, lanes)
    return left, right
