"""Processes that are kept alive: started, watched, started again with a growing pause, and all ended in the end.

Used like this: `keeper = Keeper(told)`, `await keeper.keep(Program(...))`, `await keeper.stop(grace)`; in an emergency
`keeper.kill()`. Every child is a session of its own (Ctrl-C of the terminal reaches only us) and is killed by the
kernel when we die, however we die. `told` hears of every start and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Literal

import psutil

from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.home import Mark

_SET_CHILD_SUBREAPER = 36
_TAIL = 4096
_CHUNK = 65536

# Runs in the child before it becomes the program: a preexec_fn would run Python between fork and exec of a process that
# has threads. Should we be dead already, the signal will never come: hence the look at the parent.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """What to start.

    Attributes:
        name: for people, unique within a keeper.
        argv: absolute program first.
        env: added to our own environment.
        log: file that stdout and stderr are appended to; None: lines go to the keeper's `lines`.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    log: Path | None = None


def module(name: str, module_name: str, env: Mapping[str, str], log: Path | None = None) -> Program:
    """A Python module as a program.

    `-P`: the working directory is the user's; a `queue.py` that lies there must not become ours.
    """
    return Program(name, (sys.executable, "-P", "-m", module_name), env, log)


@dataclasses.dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a dead program is started again.

    Attributes:
        first: seconds before the second try; doubled each time.
        most: seconds it grows to.
        healthy: a program that lived so long starts counting anew.
        give_up: deaths in a row, each younger than `healthy`, after which it is not started again.
    """

    first: float = 0.1
    most: float = 5.0
    healthy: float = 10.0
    give_up: int = 6

    def pause(self, deaths: int) -> float | None:
        """Seconds to wait after so many deaths in a row, None to give up."""
        if deaths >= self.give_up:
            return None
        return min(self.most, self.first * 2.0 ** (deaths - 1))


@dataclasses.dataclass(slots=True)
class Unreached:
    """Counts a program's ends because the control plane could not be reached, those in a row.

    Each takes as long as the program waits for a broker, so it looks healthy to a `Backoff`.

    Attributes:
        most: after so many the broker counts as gone for good.
    """

    most: int = 3
    times: int = 0

    def ended(self, code: int) -> bool:
        """Take in the program's exit code; True if the broker counts as gone for good."""
        self.times = self.times + 1 if code == ControlPlaneUnreachable.exit_code else 0
        return self.gone

    @property
    def gone(self) -> bool:
        """True if the broker counts as gone for good."""
        return self.times >= self.most


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """One change of a kept program.

    Attributes:
        what: `started`; `ended` (as it should); `died` and is started again after `pause` seconds; `given up`.
        code: exit status, or minus the signal's number.
        tail: the last lines it wrote to its log.
    """

    name: str
    what: Literal["started", "ended", "died", "given up"]
    pid: int = 0
    code: int = 0
    pause: float = 0.0
    tail: str = ""

    def __str__(self) -> str:
        how = (
            f"killed by signal {-self.code} ({_signal_name(-self.code)})" if self.code < 0 else f"exit code {self.code}"
        )
        if self.what == "started":
            return f"{self.name} started (pid {self.pid})"
        if self.what == "died":
            return f"{self.name} (pid {self.pid}) died: {how}; starting it again"
        if self.what == "given up":
            said = f": {self.tail}" if self.tail else ""
            return f"{self.name} dies again and again ({how}){said}"
        return f"{self.name} ended: {how}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


Told = Callable[[Notice], None]
Final = Callable[[int], Awaitable[bool]]
Lines = Callable[[str, bool, list[str]], None]
"""Called with (program's name, True if from stderr, lines without their ends)."""


async def _never(_code: int) -> bool:
    return False


async def _always(_code: int) -> bool:
    return True


class Keeper:
    """Keeps programs alive until it is stopped."""

    def __init__(self, told: Told, lines: Lines | None = None, backoff: Backoff | None = None) -> None:
        self._stopping = False
        self._told = told
        self._lines = lines
        self._backoff = backoff or Backoff()
        self._tasks: dict[str, asyncio.Task[int]] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._marks: dict[str, Mark] = {}
        self._final: dict[str, Final] = {}

    async def keep(self, program: Program, final: Final | None = None) -> None:
        """Start a program and keep it alive; returns once its first process exists.

        Args:
            program: what.
            final: asked with the exit code whether this was its proper end; else it is started again.

        Raises:
            OSError: it cannot be started at all.
        """
        if self.stopping():
            return
        self._final[program.name] = final or _never
        process = await self._spawn(program)
        self._tasks[program.name] = asyncio.create_task(self._watch(program, process), name=f"keep {program.name}")

    def stopping(self) -> bool:
        """True once `stop` (of all) or `kill` was called: nothing is started any more."""
        return self._stopping

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The processes that run now."""
        return tuple(mark for name, mark in self._marks.items() if name in self._processes)

    def pid(self, name: str) -> int | None:
        """Process id of a program, None while it does not run."""
        process = self._processes.get(name)
        return process.pid if process else None

    def keeps(self, name: str) -> bool:
        """True if the program is kept (also while it waits to be started again)."""
        task = self._tasks.get(name)
        return task is not None and not task.done()

    def knows(self, name: str) -> bool:
        """True if the program was ever started here."""
        return name in self._tasks

    async def end(self, name: str) -> int:
        """Wait until a program is not kept any more; returns its last exit code."""
        return await asyncio.shield(self._tasks[name])

    def signal(self, name: str, number: int) -> bool:
        """Send a signal to a program's process; False if it does not run."""
        process = self._processes.get(name)
        if process is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        return True

    async def stop(self, grace: float, names: list[str] | None = None) -> None:
        """End programs politely (SIGTERM), after `grace` seconds by force; by default all, and for good."""
        if names is None:
            self._stopping = True
        chosen = [n for n in (names if names is not None else list(self._tasks)) if n in self._tasks]
        for name in chosen:
            self._final[name] = _always
            if not self.signal(name, signal.SIGTERM):
                self._tasks[name].cancel()
            # a stopped process (SIGSTOP) would only see the signal when it goes on
            self.signal(name, signal.SIGCONT)
        tasks = [self._tasks[name] for name in chosen]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace)
        for name in chosen:
            if self._tasks[name] in late:
                self._kill_session(name)
        await asyncio.wait(tasks, timeout=5.0)

    def kill(self) -> None:
        """SIGKILL to everything, now; nothing is started any more. Needs no event loop."""
        self._stopping = True
        for name in list(self._processes):
            self._final[name] = _always
            self._kill_session(name)

    def _kill_session(self, name: str) -> None:
        process = self._processes.get(name)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its own group: it was started as a session
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    async def _spawn(self, program: Program) -> asyncio.subprocess.Process:
        out: int = asyncio.subprocess.PIPE
        if program.log is not None:
            out = os.open(program.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-S", "-E", "-c", _DIE_WITH_PARENT, str(os.getpid()), *program.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **program.env},
                start_new_session=True,
            )
        finally:
            if program.log is not None:
                os.close(out)
        self._processes[program.name] = process
        self._marks[program.name] = Mark.of(process.pid, program.name)
        self._told(Notice(program.name, "started", process.pid))
        return process

    async def _watch(self, program: Program, process: asyncio.subprocess.Process) -> int:
        name, deaths, code = program.name, 0, 0
        try:
            while True:
                began = time.monotonic()
                code = await self._outlive(program, process)
                self._processes.pop(name, None)
                if self.stopping() or await self._final[name](code):
                    self._told(Notice(name, "ended", process.pid, code))
                    return code
                deaths = 1 if time.monotonic() - began >= self._backoff.healthy else deaths + 1
                pause = self._backoff.pause(deaths)
                tail = _tail(program.log)
                if pause is None:
                    self._told(Notice(name, "given up", process.pid, code, tail=tail))
                    return code
                self._told(Notice(name, "died", process.pid, code, pause, tail))
                await asyncio.sleep(pause)
                if self.stopping():
                    return code
                process = await self._spawn(program)
        except asyncio.CancelledError:
            return code

    async def _outlive(self, program: Program, process: asyncio.subprocess.Process) -> int:
        readers = [
            asyncio.create_task(self._read(program.name, stream, error))
            for stream, error in ((process.stdout, False), (process.stderr, True))
            if stream is not None
        ]
        code = await process.wait()
        if readers:
            # what it wrote last; a grandchild that keeps the pipe open must not keep us
            _, late = await asyncio.wait(readers, timeout=1.0)
            for task in late:
                task.cancel()
        return code

    async def _read(self, name: str, stream: asyncio.StreamReader, error: bool) -> None:
        rest = b""
        while data := await stream.read(_CHUNK):
            *whole, rest = (rest + data).split(b"\n")
            if whole and self._lines:
                self._lines(name, error, [line.decode(errors="replace") for line in whole])
            if len(rest) > _CHUNK and self._lines:
                self._lines(name, error, [rest.decode(errors="replace")])
                rest = b""
        if rest and self._lines:
            self._lines(name, error, [rest.decode(errors="replace")])


def _tail(log: Path | None) -> str:
    if log is None:
        return ""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies, so that `sweep` finds them (PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def sweep(within: float = 3.0, spare: tuple[int, ...] = ()) -> list[int]:
    """Kill every descendant of this process and reap it; returns those that could not be killed in time.

    Args:
        within: seconds; a process in uninterruptible sleep cannot be killed by anybody.
        spare: process ids that are left alone, with what they started.
    """
    deadline = time.monotonic() + within
    while True:
        left = [p for p in _descendants(spare) if not _reap(p)]
        if not left or time.monotonic() > deadline:
            return [p.pid for p in left]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.01)


def _descendants(spare: tuple[int, ...]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children():
            if child.pid not in spare:
                found.append(child)
                with contextlib.suppress(psutil.Error):
                    found.extend(child.children(recursive=True))
    return found


def _reap(process: psutil.Process) -> bool:
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return False
        if process.ppid() == os.getpid():
            os.waitpid(process.pid, os.WNOHANG)
        return True
    except (psutil.Error, ChildProcessError):
        return True
