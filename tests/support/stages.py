"""One job on four hosts for all tests of a file; it is begun anew when a test has left it broken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from support.hosts import Hosts
from support.launchers import Place
from support.trainings import Training

NODES = "abcd"


class Stage:
    """The job that the tests of a file share."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._open = contextlib.ExitStack()
        self.run: Training | None = None

    def training(self) -> Training:
        """The job, with all four workers at work."""
        if self.run is not None:
            try:
                self.run.whole()
            except AssertionError:
                self.close()
        if self.run is None:
            hosts = self._open.enter_context(Hosts())
            self.run = Training(Place(self._folder()), hosts, list(NODES))
            self._open.callback(self.run.end)
            self.run.begin()
        return self.run

    def close(self) -> None:
        """End the job, by force."""
        self.run = None
        self._open.close()
