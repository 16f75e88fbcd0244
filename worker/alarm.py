"""Says on the log which samples a NaN or an Inf came from; sparingly, for a run that is lost says it in every step."""

from __future__ import annotations

import time
from collections.abc import Callable

from reknit.core.events import Event, SlotNotFinite, StepNotFinite

from .ring.resend import Committed

PAUSE = 1.0
"""Seconds between two events while step after step is not finite."""


class Alarm:
    """Published by the worker that owns slot 0.

    Args:
        worker: who we are.
        run: the run's id.
        post: publishes an event.
    """

    def __init__(self, worker: str, run: str, post: Callable[[Event], None]) -> None:
        self._worker, self._run, self._post = worker, run, post
        self._steps = 0
        self._last = float("-inf")

    def committed(self, of: Committed, loss: float | None) -> None:
        """A step is committed."""
        if not of.settled.nonfinite:
            self._last = float("-inf")  # the next one is news again
            self._steps = 0
            return
        self._steps += 1
        now = time.monotonic()
        if of.owners[0].worker != self._worker or now - self._last < PAUSE:
            return
        owner = {slot: r.worker for r in of.owners for slot in range(r.first, r.end)}
        slots = tuple(
            SlotNotFinite(slot=slot, worker=owner.get(slot, ""), samples=samples)
            for slot, samples in of.settled.nonfinite
        )
        self._post(
            StepNotFinite(
                run=self._run, step=of.step, generation=of.generation, slots=slots, loss=loss, steps=self._steps
            )
        )
        self._last, self._steps = now, 0
