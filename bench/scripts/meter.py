"""Measures a training loop from inside, the same way for all systems."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path


class Meter:
    """Leaves out the first seconds, measures the next ones, writes what it saw into a file and then does nothing.

    Args:
        folder: where the file goes.
        worker: name of this worker.
        warm: seconds left out, from the first step on.
        seconds: seconds measured.
    """

    def __init__(self, folder: str, worker: str, warm: float, seconds: float) -> None:
        self._file = Path(folder) / f"{worker}.{os.getpid()}.metered"
        self._warm = warm
        self._seconds = seconds
        self._first = 0.0
        self._began = 0.0
        self._cpu = 0.0
        self._last = 0.0
        self._took: list[float] = []
        self._done = False

    def completed(self, samples: int) -> None:
        """Note that a step with so many samples in all is complete."""
        now = time.perf_counter()
        if self._done:
            return
        if not self._first:
            self._first = now
        if not self._began:
            if now - self._first >= self._warm:
                self._began = self._last = now
                self._cpu = time.process_time()
                self._file.with_suffix(".began").touch()
            return
        self._took.append(now - self._last)
        self._last = now
        if now - self._began >= self._seconds:
            self._done = True
            self._write(samples)

    def _write(self, samples: int) -> None:
        steps = len(self._took)
        seconds = self._last - self._began
        result = {
            "steps": steps,
            "samples_per_s": samples * steps / seconds,
            "step_ms_median": 1e3 * statistics.median(self._took),
            "cpu_ms_a_step": 1e3 * (time.process_time() - self._cpu) / steps,
        }
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(result))
        new.rename(self._file)
