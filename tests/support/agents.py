"""A real agent over a real broker, for tests: started, watched, and in any case ended with all that is below it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import psutil

from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.context import AGENT, AgentContext, Endpoint, to_env
from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.events import (
    Event,
    JobFinished,
    JobSubmitted,
    Member,
    TargetsSet,
    Terms,
    WorkerRegistered,
    WorkerStarted,
    WorldChanged,
)

E = TypeVar("E")
PATIENCE = 30.0


def until(condition: Callable[[], E | None], what: str, seconds: float = PATIENCE) -> E:
    """Poll until the condition holds; its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def alive(pid: int) -> bool:
    """True if the process exists and is no zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class AgentUnderTest:
    """One agent process of a job of its own."""

    def __init__(self, endpoint: Endpoint, folder: Path, source: str, **fields: object) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self.script = folder / "script.py"
        self.script.write_text(textwrap.dedent(source))
        self.out = folder / "agent.out"
        self.err = folder / "agent.err"
        values: dict[str, object] = {
            "endpoint": endpoint,
            "job": f"j{os.getpid()}-{time.monotonic_ns()}",
            "run": "run1",
            "node": "w0",
            "nproc": 1,
            "script": str(self.script),
            "log_dir": str(folder / "logs"),
            "grace": 5.0,
            "evict_grace": 1.0,
        }
        self.context = AgentContext(**(values | fields))  # type: ignore[arg-type]
        self.job = self.context.job
        self.process: subprocess.Popen[bytes] | None = None
        self._seen: set[int] = set()
        self._bus: BusThread | None = None

    def start(self, env: dict[str, str] | None = None, stdout: int | None = None) -> AgentUnderTest:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "reknit.worker.agent"],
            # most scripts here do not need torch: an agent is up three times sooner without
            env=os.environ | {AGENT: to_env(self.context), "REKNIT_PRELOAD": "reknit.worker.child"} | (env or {}),
            stdout=self.out.open("ab") if stdout is None else stdout,
            stderr=self.err.open("ab"),
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            start_new_session=True,
        )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def descendants(self) -> list[psutil.Process]:
        """All processes below the agent now; remembered, so that `end` can end orphans too."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update(p.pid for p in found)
        return found

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the agent did not end\n{self.told()}") from None

    def told(self) -> str:
        """What the agent wrote, stdout and then stderr."""
        return self.out.read_text(errors="replace") + self.err.read_text(errors="replace")

    def says(self, text: str, seconds: float = PATIENCE) -> None:
        until(lambda: text in self.told(), f"{text!r} in the agent's output", seconds)

    def log(self, worker: str = "w0-0") -> str:
        return (self.folder / "logs" / f"{worker}.log").read_text(errors="replace")

    @property
    def bus(self) -> BusThread:
        """The test's own connection."""
        if self._bus is None:
            self._bus = BusThread(self.endpoint, "test")
            self._bus.start()
        return self._bus

    def publish(self, *events: Event) -> None:
        for event in events:
            self.bus.publish(self.job, event)

    def submit(self) -> AgentUnderTest:
        self.publish(JobSubmitted(run=self.context.run, script=str(self.script)))
        return self

    def events(self, kind: type[E]) -> list[E]:
        """All events of a kind that the job's log holds now."""
        found = until(self._backlog, "the broker answers")
        return [r.event for r in found if isinstance(r.event, kind)]

    def _backlog(self) -> list[Received]:
        # empty while the broker is away: a job's log has its submission at least
        with contextlib.suppress(ControlPlaneUnreachable):
            return self.bus.call(lambda bus: bus.backlog(job=self.job), timeout=PATIENCE)
        return []

    def event(self, kind: type[E], number: int = 1, seconds: float = PATIENCE) -> E:
        """Wait for the n-th event of a kind."""
        try:
            return until(
                lambda: (self.events(kind) + [None] * number)[number - 1], f"{number} {kind.__name__}", seconds
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def started(self, number: int = 1) -> WorkerStarted:
        return self.event(WorkerStarted, number)

    def register(self, started: WorkerStarted) -> Member:
        """Say what a session would say once it is ready."""
        self.publish(
            WorkerRegistered(
                worker=started.worker,
                incarnation=started.incarnation,
                node=started.node,
                run=self.context.run,
                pid=started.pid,
                address="127.0.0.1:1",
                terms=Terms(slots=1, micro_batch=1, samples=1, epochs=1, seed=0),
            )
        )
        return Member(
            worker=started.worker,
            incarnation=started.incarnation,
            node=started.node,
            pid=started.pid,
            address="127.0.0.1:1",
        )

    def targets(self, **targets: int) -> None:
        """Say how many workers each node shall keep, as membership would."""
        self.publish(TargetsSet(run=self.context.run, targets=targets, reason="the test says so"))

    def world(self, generation: int, *members: Member) -> None:
        """Say what membership would say."""
        self.publish(
            WorldChanged(
                generation=generation,
                run=self.context.run,
                status="running",
                members=members,
                reason="the test says so",
            )
        )

    def finished(self, outcome: Literal["completed", "failed", "stopped"], reason: str = "", root: str = "") -> None:
        """Say that the run is over."""
        self.publish(JobFinished(run=self.context.run, outcome=outcome, reason=reason, root_worker=root))

    def end(self) -> None:
        """End the agent and all that was ever seen below it."""
        self.descendants()
        if self._bus is not None:
            self._bus.close(0.0)
            self._bus = None
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        # its guard first: what is being forked at this moment, and never seen here, is ended by nobody else
        give_up = time.monotonic() + 5.0
        while any(map(alive, self._seen)) and time.monotonic() < give_up:
            time.sleep(0.01)
        for pid in self._seen:
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if "test" not in psutil.Process(pid).name():
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def agent(endpoint: Endpoint, folder: Path, source: str, **fields: object) -> Iterator[AgentUnderTest]:
    """An agent that is not started yet, ended at the exit whatever happens."""
    one = AgentUnderTest(endpoint, folder, source, **fields)
    try:
        yield one
    finally:
        one.end()
