"""Waits for the end of one worker process, in a thread that costs nothing until then.

Used like this: `watch = Deathwatch(line, pid)`; once the worker is known to run, `watch.begin(tell)`; `tell` is called
from the thread, at most once, as soon as the kernel ends the process; `watch.end()` when it was reaped, in any case.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from . import procfs
from .lifeline import Lifeline

_LOOK_UP = 10.0
"""Seconds after which the thread looks whether it is still needed; it is woken long before that."""


class Deathwatch:
    """The watch over one process; owns the agent's end of its lifeline."""

    def __init__(self, line: Lifeline | None, pid: int) -> None:
        self._line = line
        self._pid = pid
        self._over = False
        self._thread: threading.Thread | None = None

    def begin(self, tell: Callable[[], None]) -> bool:
        """Watch from now on; again and again is once. False if the process holds no lifeline."""
        if self._over or self._line is None:
            return False
        if self._thread is None and self._line.holder == self._pid:
            self._thread = threading.Thread(
                target=self._watch, args=(self._line, tell), name=f"deathwatch-{self._pid}", daemon=True
            )
            self._thread.start()
        return self._thread is not None

    def end(self) -> None:
        """The process is gone: so is its lifeline, and the thread with it."""
        self._over = True
        if self._thread is None and self._line is not None:
            self._line.close()
        self._line = None

    def _watch(self, line: Lifeline, tell: Callable[[], None]) -> None:
        try:
            while not line.broken(_LOOK_UP):
                if self._over:
                    return
            # an exec breaks the line too, and the process lives on; then nobody watches it any more
            if not self._over and procfs.is_ending(self._pid):
                tell()
        except OSError:
            return  # its exit will be noticed in any case
        finally:
            line.close()
