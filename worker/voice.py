"""What this worker says in the control piece of a step: what it wishes, and what only it knows of its slots."""

from __future__ import annotations

import time

from .calling import Caller
from .exchange import Exchange
from .feed import Feeder
from .ledger import Pending
from .ring.control import Wishes
from .ring.link import LinkBroken
from .ring.neighbours import Neighbours
from .ring.vote import Diverged

FED_LATELY = 10.0
"""Seconds (and one step) for which somebody outside who was fed counts as still learning."""
LAST_CHECKPOINT = 1.0
"""Seconds that the workers of a run that stops, or that all leave, go on for its last checkpoint to be asked for."""


class Voice:
    """Speaks for one worker.

    Args:
        worker: who we are.
        shared: what is shared with the main thread.
        caller: knows who of the ring wants to leave.
        feeder: knows whether somebody outside learns from us.
        ledger: knows what is stored.
        neighbours: our links.
        saves: a service takes checkpoints of the run.

    Attributes:
        stopping: the job was asked to stop: nobody is waited for.
    """

    def __init__(
        self,
        worker: str,
        shared: Exchange,
        *,
        caller: Caller,
        feeder: Feeder,
        ledger: Pending,
        neighbours: Neighbours,
        saves: bool,
    ) -> None:
        self.stopping = False
        self._worker = worker
        self._shared = shared
        self._caller = caller
        self._feeder = feeder
        self._ledger = ledger
        self._neighbours = neighbours
        self._saves = saves
        self._stays_until = 0.0
        self._leaves_since: float | None = None
        self._fed_lately = (0.0, -1)

    def stop(self, *, awaits_checkpoint: bool) -> None:
        """The run was asked to stop (bus thread): all leave together, not before the last checkpoint was asked for."""
        self._stays_until = time.monotonic() + (LAST_CHECKPOINT if awaits_checkpoint else 0.0)
        self.stopping = True

    def checkpoint_asked(self) -> None:
        """The last checkpoint of a run that stops was asked for (bus thread): no reason any more to stay."""
        self._stays_until = 0.0

    def wishes(self) -> Wishes:
        """What is said of the step that is reduced (engine thread); waits for the digest of its weights.

        Raises:
            WorldMoved: a newer world arrived first.
            Diverged: the weights changed meanwhile, and nobody is here who could have the right ones.
            LinkBroken: the weights changed meanwhile: the roll call finds out who has the right ones.
        """
        shared = self._shared
        weights, fed = self._own_weights(), self._teaches_outside()
        leaves = bool(shared.leaving) and time.monotonic() >= self._stays_until
        with shared.cv:
            return Wishes(
                plan=shared.plan if shared.plan and shared.plan.generation == shared.generation else None,
                leaving=self._caller.leavers | ({self._worker} if leaves else frozenset()),
                checkpoint=shared.checkpoint if shared.step + 1 >= shared.checkpoint_from else "",
                ledger=self._ledger.stored,
                chain=shared.chain,
                weights=weights,
                state=shared.weights.state if weights else 0,
                notes=tuple(shared.notes[slot] for slot in sorted(shared.notes)),
                switch=shared.upcoming.generation if shared.upcoming is not None else 0,
                fed=fed,
                stopping=self.stopping,
                unsaved=not self.stopping and self._awaits_checkpoint(),
            )

    def _awaits_checkpoint(self) -> bool:
        """We have wanted to leave for a moment only: should nobody stay, a last checkpoint is yet to be asked for."""
        now = time.monotonic()
        if not (self._saves and self._shared.leaving):
            return False
        if self._leaves_since is None:
            self._leaves_since = now
        return now < self._leaves_since + LAST_CHECKPOINT

    def _teaches_outside(self) -> bool:
        """Somebody outside learns from us, or did a moment ago: one that is cut off begins anew."""
        now, step = time.monotonic(), self._shared.step
        if self._feeder.fed:
            self._fed_lately = now + FED_LATELY, step + 1
        until, last = self._fed_lately
        return now < until or step <= last

    def _own_weights(self) -> int:
        """The digest of the weights that our slots were computed with, 0 if we computed none; raises as `wishes`."""
        shared = self._shared
        if not shared.own_slots():
            return 0
        digest = shared.own_weights()
        if shared.weights.before:
            why = f"the weights changed while step {shared.step} was computed with them"
            if self._neighbours.following is not None:
                raise LinkBroken("next", f"diverged: {why}")
            raise Diverged(
                f"{why}, and no other worker has them",
                hint="bad memory, or a script that changes weights through .data in its forward pass "
                "(then run it with --no-verify-weights); the run goes back to its last checkpoint",
            )
        return digest
