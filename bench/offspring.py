"""All processes that a benchmark starts, theirs too, and their certain end.

Used like this:

    with Offspring() as offspring:
        process = offspring.start([...], tag="node1", log=path)
        offspring.alive("node1")       # pids, whoever is their parent by now

Each process inherits a mark in its environment, so that it is found even after it was orphaned or made a session of its
own; nothing without the mark is ever touched. The end comes on leaving the block, also by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Self

_MARK = "BENCH_MARK"


class Offspring:
    """See the module."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Let SIGTERM end this process as Ctrl-C does: through the end of this block."""
        signal.signal(signal.SIGTERM, _terminated)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all that is left, without much patience after an error or Ctrl-C."""
        self.end(10.0 if kind is None else 2.0)

    def environment(self, tag: str, more: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for a child and all of its own."""
        return {**os.environ, **more, _MARK: f"{self._mark}/{tag}"}

    def start(
        self,
        command: Sequence[str],
        *,
        tag: str,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own; what it prints goes to the end of a file.

        Args:
            command: program and arguments.
            tag: tells groups of processes apart, e.g. a node's name.
            log: file for stdout and stderr.
            env: added to this process's environment.
            cwd: working directory.
        """
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment(tag, env),
                cwd=cwd,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def alive(self, tag: str = "") -> list[int]:
        """Return the pids of all living processes with our mark, or only those of a tag; ours first, by age."""
        wanted = f"{_MARK}={self._mark}/{tag}".encode()
        entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return sorted(int(entry.name) for entry in entries if _bears(entry, wanted, whole=bool(tag)))

    def kill(self, tag: str = "") -> float:
        """SIGKILL all processes of a tag at once, as a power cut would; returns the wall time of the first one.

        The youngest first: the kernel takes tens of milliseconds to take a large process apart, and those that nobody
        waits for shall not be before those that somebody does.
        """
        pids = self.alive(tag)[::-1]
        at = time.time()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return at

    def end(self, grace: float = 10.0) -> None:
        """End what was started: SIGTERM to our own children, SIGKILL to whatever is left after the grace."""
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + grace
        while self.alive() and time.monotonic() < deadline:
            for process in self._started:
                process.poll()
            time.sleep(0.05)
        deadline = time.monotonic() + 5.0
        while self.alive() and time.monotonic() < deadline:
            self.kill()
            for process in self._started:
                process.poll()
            time.sleep(0.05)
        self._started.clear()


def _bears(entry: Path, wanted: bytes, *, whole: bool) -> bool:
    try:
        variables = (entry / "environ").read_bytes().split(b"\0")
        state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # gone meanwhile, or somebody else's
        return False
    if state in "ZX":
        return False
    return wanted in variables if whole else any(variable.startswith(wanted) for variable in variables)


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
