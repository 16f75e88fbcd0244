"""A newcomer computes one slot that somebody else has computed, and compares: does it get the same bits?

While somebody learns from the members of a ring, the owner of one slot a step tells a digest of its gradient
(`SlotNote.proof`); it travels with the step's result. A newcomer that has loaded the state, and replays that step,
computes the slot itself before it applies the result: on the same weights, with the user's own loop. Nobody waits for
it. It costs a ring with a newcomer one digest a step, and any other ring nothing.

The same bits: this machine computes what the others compute, for this model. Other bits are computed once more. If they
are others again, the micro-batch itself is not reproducible, and the run is not exact whoever takes part. If they are
the same again, this machine (or the owner's) computes otherwise, and the newcomer is not let in.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import xxhash

from .ring.pieces import Buffer, Shape
from .ring.resend import Committed

Outcome = Literal["same", "again", "unsteady", "other"]


def gradient_digest(shape: Shape, buffer: Buffer) -> int:
    """Digest of a slot's gradients, never 0; buffers and counts of the flat buffer are left out."""
    hasher = xxhash.xxh3_64()
    for section in shape.sections:
        hasher.update(buffer[section.start : section.start + section.gradients].data)
    return hasher.intdigest() or 1


@dataclasses.dataclass(slots=True)
class Rehearsal:
    """Where a worker stands with its rehearsal; guarded by the exchange's condition.

    Attributes:
        due: it has received its state from a peer and has not rehearsed since.
        slot: the slot of the step that is being applied, as `wanted` said, -1: none.
        proof: digest of its gradient, as its owner told.
        owner: who computed it.
        first: what this worker got at its first try, 0 before.
        proving: somebody else learns: a slot of the step in flight is proved for it.
    """

    due: bool = False
    slot: int = -1
    proof: int = 0
    owner: str = ""
    first: int = 0
    proving: bool = False

    def begin(self) -> None:
        """A state was received: what was computed before says nothing about it."""
        self.due, self.slot, self.first = True, -1, 0

    def wanted(self, committed: Committed) -> bool:
        """True if a slot of this step is to be computed before its result is applied."""
        if not self.due or not committed.settled.proof:
            return False
        self.slot, self.proof = committed.settled.proof
        self.owner = next((r.worker for r in committed.owners if r.first <= self.slot < r.end), "")
        return True

    def compare(self, digest: int) -> Outcome:
        """Compare what was computed with the proof.

        Returns:
            same; again: to be computed once more; unsteady: two tries gave two gradients; other: both gave one that is
            not the owner's.
        """
        if digest == self.proof:
            # the second try may fit where the first did not: then it is not reproducible all the same
            outcome: Outcome = "same" if not self.first else "unsteady"
        elif not self.first:
            self.first = digest
            return "again"
        else:
            outcome = "other" if digest == self.first else "unsteady"
        self.due, self.first = False, 0
        return outcome

    def words(self, step: int, outcome: Outcome) -> str:
        """Say what was found."""
        which = f"slot {self.slot} of step {step}"
        if outcome == "unsteady":
            return f"{which} has another gradient each time it is computed: its micro-batch or its script is not seeded"
        return (
            f"{which} has another gradient here than at {self.owner}, computed twice from equal weights: "
            "one of the two machines computes otherwise"
        )
