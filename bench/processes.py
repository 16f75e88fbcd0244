"""What all systems under measurement share: workers are known by their notes, those on a node by its tag."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from offspring import Offspring
from steplog import Reader, newest


class Processes:
    """Processes of one system: which of them work, and how one of them is hit."""

    def __init__(self, offspring: Offspring, folder: Path) -> None:
        self.offspring = offspring
        self.folder = folder
        self.steps = folder / "steps"
        self.steps.mkdir(parents=True)
        self.reader = Reader(self.steps)

    def workers(self) -> dict[str, set[int]]:
        """Living workers by name."""
        alive = set(self.offspring.alive())
        return {d.worker: {pid} for pid, d in newest(self.reader.look()).items() if pid in alive}

    def on_node(self, node: str) -> set[int]:
        """Living workers of a node."""
        return set(self.offspring.alive(node)) & {d.pid for d in self.reader.look()}

    def signal(self, worker: str, number: signal.Signals) -> float:
        """Send a signal to a worker's process; returns the wall time right before."""
        (pid,) = self.workers()[worker]
        at = time.time()
        os.kill(pid, number)
        return at
