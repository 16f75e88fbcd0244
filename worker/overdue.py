"""A worker that hangs in an evaluation after the last step: nobody waits for it in the ring, so it looks after itself.

In the loop membership finds such a worker, because the others wait for it in the next step. After the last step they
have their results and are gone, and the run would never end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from reknit.core.bus_thread import BusThread
from reknit.core.events import WorkerFailed

_FLUSH = 3.0


class Overdue:
    """Watches the main thread while it measures.

    Args:
        limit: seconds that one micro-batch may take once its scores are known from another worker.
        known: True if they are.
        give_up: called with the number of the micro-batch, on a thread of its own.
    """

    def __init__(self, limit: float, known: Callable[[int], bool], give_up: Callable[[int], object]) -> None:
        self._limit, self._known, self._give_up = limit, known, give_up
        self._at: tuple[int, float] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="overdue", daemon=True)
        self._thread.start()

    def begin(self, number: int) -> None:
        """A micro-batch is measured from now on."""
        self._at = (number, time.monotonic())

    def end(self) -> None:
        """It is measured."""
        self._at = None

    def close(self) -> None:
        """The evaluation is over."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(min(1.0, self._limit / 4)):
            at = self._at
            if at is not None and time.monotonic() - at[1] > self._limit and self._known(at[0]):
                self._give_up(at[0])
                return


def end_process(bus: BusThread, job: str, *, worker: str, incarnation: int, step: int, why: str) -> NoReturn:
    """Say where the main thread is, to stderr and on the log, and end the process with status 1."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the only way to a thread's stack
    stack = "".join(traceback.format_stack(frame))
    print(f"Traceback of the main thread (most recent call last):\n{stack}reknit: {why}", file=sys.stderr, flush=True)  # noqa: T201
    bus.post(job, WorkerFailed(worker=worker, incarnation=incarnation, error=why, traceback=f"{stack}{why}", step=step))
    bus.close(_FLUSH)
    os._exit(1)
