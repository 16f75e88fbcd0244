"""What the engine asks of a transport: the sum of a step's flat gradients, and what the step agreed on.

Links, roll call, mending, feeds and the control piece stay on the ring's TCP links whatever the transport is.
"""

from __future__ import annotations

from typing import Protocol

from reknit.worker.ring.control import Settled
from reknit.worker.ring.reduction import Reduction


class Transport(Protocol):
    """A way to add up. The engine thread alone calls it."""

    def reduce(self, work: Reduction) -> tuple[Settled, int]:
        """Reduce one step; spares and learners take part without slots.

        Args:
            work: this worker's part: its route, its slots, the links, and the buffer that becomes the result.

        Returns:
            What was settled, and the new result chain.

        Raises:
            LinkBroken: a neighbour is gone or broke the protocol.
            WorldMoved: a newer world arrived meanwhile.
        """

    def close(self) -> None:
        """Give up what is under way and free everything; idempotent."""


class Tcp:
    """The ring's own links: pieces folded in slot order on their way round. See docs/ring.md."""

    def reduce(self, work: Reduction) -> tuple[Settled, int]:
        """See `Transport`."""
        return work.run()

    def close(self) -> None:
        """See `Transport`: the links are not ours."""
