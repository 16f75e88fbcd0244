"""What a worker says of itself four times a second."""

from __future__ import annotations

import collections
import math
import time

import psutil

from reknit.core.events import WorkerPulse
from reknit.core.order import Course

from .exchange import Exchange

_WINDOW = 5.0
_SLOTS = 32


class Gauge:
    """Measures steps and slots; written by the main thread, read by the bus thread."""

    def __init__(self) -> None:
        self._steps: collections.deque[tuple[float, int]] = collections.deque(maxlen=2048)
        self._slots: collections.deque[float] = collections.deque(maxlen=_SLOTS)
        self._samples = 0
        self._loss: float | None = None
        self._finite = True
        self._process = psutil.Process()

    def slot_took(self, seconds: float) -> None:
        """A micro-batch was computed."""
        self._slots.append(seconds)

    def committed(self, samples: int, loss: float | None) -> None:
        """A step of so many samples was committed."""
        self._samples += samples
        self._steps.append((time.monotonic(), samples))
        self._loss = loss
        self._finite = self._finite and (loss is None or math.isfinite(loss))

    def pulse(self, shared: Exchange, course: Course) -> WorkerPulse:
        """The heartbeat for this moment."""
        now = time.monotonic()
        recent = [(t, n) for t, n in list(self._steps) if t >= now - _WINDOW]
        span = recent[-1][0] - recent[0][0] if len(recent) > 1 else 0.0
        slots = list(self._slots)
        step = shared.main_step if shared.main_step is not None else shared.step
        return WorkerPulse(
            worker=shared.worker,
            incarnation=shared.incarnation,
            generation=shared.generation,
            step=step,
            committed=shared.step,
            phase=shared.phase,
            in_phase=now - shared.phase_since,
            samples=self._samples,
            rate=sum(n for _, n in recent[1:]) / span if span else 0.0,
            step_seconds=span / (len(recent) - 1) if span else 0.0,
            compute_seconds=sum(slots) / len(slots) if slots else 0.0,
            slots=sum(r.end - r.first for r in shared.owners if r.worker == shared.worker),
            loss=self._loss if self._finite else None,
            loss_finite=self._finite,
            epoch=course.epoch_of(min(step, course.steps - 1)),
            steps_in_all=shared.total,
            rss=self._process.memory_info().rss,
            current=shared.current,
        )
