"""What the main thread is told to do next, and the result that it applies."""

from __future__ import annotations

import dataclasses

from .copies import StateCopy
from .ring.link import Link
from .ring.pieces import Buffer
from .ring.resend import Committed


@dataclasses.dataclass(frozen=True, slots=True)
class Compute:
    """Work: compute this slot; `orphan`: another worker had it and died."""

    step: int
    slot: int
    orphan: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Apply:
    """Work: the step's result is complete; apply it."""

    step: int
    result: Result


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """Work: this worker has the state; its next step is `step`."""

    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """Work: put this state, received from a peer, into the tracked objects."""

    state: StateCopy


@dataclasses.dataclass(frozen=True, slots=True)
class Restore:
    """Work: nobody has the run's state; restore the newest checkpoint, or declare the fresh state to be the run's."""


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """Work: a learner waits for a copy of the state as it is at the beginning of `step`."""

    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class Rehearse:
    """Work: compute this slot of a step whose result is here, to see if it comes to the same bits."""

    step: int
    slot: int


@dataclasses.dataclass(frozen=True, slots=True)
class Verify:
    """Work: take a digest of the weights that `step` is computed with, as they are now."""

    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """Work: this worker is out of the world for good (drained, or the run was stopped)."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class ComeBack:
    """Work: a world was made without this worker; it may ask to be taken in again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """Work: none is left; everybody has the last result."""


Work = Compute | Apply | Begin | Load | Restore | Copy | Rehearse | Verify | Leave | ComeBack | Done


@dataclasses.dataclass(slots=True)
class Result:
    """The reduced sum of one step.

    Attributes:
        buffer: flat bytes, the sum over all slots (not yet divided).
        of: the committed step.
        link, ticket: the buffer is still being sent until `link.done >= ticket`.
        holds: feeds that have yet to send the buffer.
        forgotten: nothing else needs the buffer any more.
    """

    buffer: Buffer
    of: Committed
    link: Link | None = None
    ticket: int = 0
    holds: int = 0
    forgotten: bool = False

    @property
    def sending(self) -> bool:
        """True while a link or a feed may still read the buffer."""
        return self.holds > 0 or (self.link is not None and not self.link.closed and self.link.done < self.ticket)
