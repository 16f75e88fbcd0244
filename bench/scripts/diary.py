"""One JSON line for each completed step, into a file of this process's own: what the recovery benchmark reads."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Diary:
    """A worker's file of completed steps, line buffered: a line is whole even if the next instant is a SIGKILL."""

    def __init__(self, folder: str, worker: str) -> None:
        self._worker = worker
        self._pid = os.getpid()
        self._file = (Path(folder) / f"{worker}.{self._pid}.jsonl").open("a", buffering=1)

    def completed(self, step: int, generation: int, slots: int) -> None:
        """Note a completed optimizer step and how many micro-batches of it were computed here."""
        line = {
            "step": step,
            "generation": generation,
            "time": time.time(),
            "pid": self._pid,
            "worker": self._worker,
            "slots": slots,
        }
        self._file.write(json.dumps(line) + "\n")
