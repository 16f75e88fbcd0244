"""How a worker leaves a ring for good: at the end of the run all together, or early, with what it had begun sent."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .exchange import Exchange
from .ledger import Pending
from .ring import roll_call
from .ring.link import LinkBroken
from .ring.linking import WorldMoved
from .ring.neighbours import Neighbours
from .ring.token import circulate

FLUSH_PATIENCE = 120.0
"""Seconds to wait at the end of a run for the broker to take the last ledger records."""


class Parting:
    """The end of a run, for one worker.

    Args:
        worker: who we are.
        shared: what is shared with the main thread.
        neighbours: our links.
        ledger: records not known to be stored.
    """

    def __init__(self, worker: str, shared: Exchange, neighbours: Neighbours, ledger: Pending) -> None:
        self._worker = worker
        self._shared = shared
        self._neighbours = neighbours
        self._ledger = ledger

    def finish(self, ring: Sequence[str]) -> None:
        """After the last step: everybody's script has left the loop, the ledger is stored; then BYE.

        Raises:
            WorldMoved: a newer world arrived first.
            LinkBroken: a neighbour is gone, or the workers' states are not equal.
        """
        shared = self._shared
        with shared.cv:
            while shared.main_step is None or shared.main_step < shared.total:
                if shared.moved():
                    raise WorldMoved("a newer world arrived at the end of the run")
                shared.cv.wait()
        if ring[0] == self._worker:
            self._store_ledger()
        links = self._neighbours
        mine = [shared.own_weights(), shared.weights.state]
        ends = circulate(ring.index(self._worker), len(ring), links.previous, links.following, mine)
        if not roll_call.agreed([(int(weights), int(state)) for weights, state in ends]):
            raise LinkBroken("previous", f"diverged: the states after step {shared.total - 1} are not equal")
        self.bye()

    def bye(self) -> None:
        """The run is over for us, and well."""
        shared = self._shared
        self._neighbours.bye(shared.total)
        with shared.cv:
            shared.finished = True
            shared.enter("finish")
            shared.cv.notify_all()

    def hand_over(self, seconds: float) -> None:
        """The script leaves the loop early: what was begun is sent, the ledger is stored, as far as can be."""
        deadline = time.monotonic() + seconds
        if self._neighbours.following is not None:
            self._neighbours.following.drain(seconds)
        self._ledger.flush()
        with self._shared.cv:
            while not self._ledger.empty and time.monotonic() < deadline:
                self._shared.cv.wait(0.1)

    def _store_ledger(self) -> None:
        deadline = time.monotonic() + FLUSH_PATIENCE
        self._ledger.flush()
        with self._shared.cv:
            while not self._ledger.empty and time.monotonic() < deadline:
                if self._shared.moved():
                    raise WorldMoved("a newer world arrived while the ledger was being stored")
                self._shared.cv.wait(0.25)
