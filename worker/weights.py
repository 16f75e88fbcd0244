"""What a worker knows of its own weights, and what the ring agreed on about them; guarded by the exchange's condition.

Every active takes a digest of the weights after its last slot of a step, and none of that step is committed before all
actives have compared theirs (`ring.reduction`). Who computes nothing compares before it applies the step's result.
"""

from __future__ import annotations

import dataclasses

from .ring.vote import Wrong


@dataclasses.dataclass(slots=True)
class Held:
    """The digest of one step's weights.

    Attributes:
        verify: weights are compared at all; equal on all workers of a run.
        step: whose weights the digest is of, -1: none was taken, or slots were computed since.
        digest: of parameters and buffers.
        state: of the optimizers' tensors, in a step before which a checkpoint is taken, and after the last one.
        before: the digest before they changed while the step was computed, though torch knows of no change; else 0.
        void: in this run that is the script's doing.
        vouched: they were compared equal since this worker last received a state, or it never received one.
        asked: the ring waits for a digest: it comes before the next slot.
        witnesses: members that have the run's state, as of the last roll call.
        stray: in what this worker is known to be wrong, None if it is not.
        why: the same in words.
        spoilt: they are known to have been wrong, and no state was received since.
    """

    verify: bool = False
    step: int = -1
    digest: int = 0
    state: int = 0
    before: int = 0
    void: bool = False
    vouched: bool = True
    asked: bool = False
    witnesses: int = 1
    stray: Wrong | None = None
    why: str = ""
    spoilt: bool = False

    def of(self, step: int) -> int:
        """The digest of this step's weights, 0 if it was not taken."""
        return self.digest if step == self.step else 0

    def take(self, step: int, digest: int, *, before: int = 0, state: int = 0) -> None:
        """A digest was taken."""
        self.step, self.digest, self.before, self.state = step, digest, 0 if self.void else before, state

    def touch(self) -> None:
        """A slot is being computed: the digest is taken (again) after it."""
        self.step, self.digest, self.before, self.state = -1, 0, 0, 0

    def replace(self) -> None:
        """Other weights are coming, from a peer: nobody has compared them yet."""
        self.touch()
        self.vouched = False
        self.stray, self.why = None, ""

    def compare(self, step: int, agreed: int) -> bool:
        """Compare with what the ring agreed on for this step; False if both are known and differ."""
        mine = self.of(step)
        if not agreed or not mine:
            return True
        self.vouched = self.vouched or mine == agreed
        return mine == agreed
