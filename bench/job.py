"""A reknit job under measurement: real launchers, broker, services and workers in a home of their own.

Used like this:

    job = Job(offspring, home, "train.py", ["--flag"], workers=3)
    job.start()
    with job.listening() as (bus, log):     # the job's events as they come
        wait_for("a death", lambda: log.of(WorkerExited), 10.0)
    job.stop()
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hosts import HERE, Host, Hosts
from offspring import Offspring

from reknit.cli.up import read_up
from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.events import Event
from reknit.core.home import Home, Mark

T = TypeVar("T")
E = TypeVar("E", bound=Event)
NAME = "bench"
SCRIPTS = Path(__file__).resolve().parent / "scripts"


class NotInTime(Exception):
    """Something did not happen within its deadline."""


def wait_for(what: str, look: Callable[[], T | None], within: float, every: float = 0.005) -> T:
    """Return the first value of `look` that is true; nothing, no and an empty list are waited on.

    Raises:
        NotInTime: there was none within so many seconds.
    """
    deadline = time.monotonic() + within
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise NotInTime(f"{what}: not within {within:g} s")
        time.sleep(every)


class Log:
    """A job's events as they come, from the first one on."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._heard: list[Callable[[Received], None]] = []
        self._lock = threading.Lock()

    def hear(self, received: Received) -> None:
        """Take in the next event (on the bus thread)."""
        self.received.append(received)
        for call in self._heard:
            call(received)

    def on_event(self, call: Callable[[Received], None]) -> None:
        """Call something for each event from now on, at once and on the bus thread."""
        self._heard.append(call)

    def of(self, kind: type[E]) -> list[E]:
        """Return all events of a kind so far."""
        return [r.event for r in self.received if isinstance(r.event, kind)]

    def places(self, kind: type[E], suits: Callable[[E], bool] = lambda _event: True) -> list[int]:
        """Return the sequences in the log of the events of a kind that suit."""
        return [r.seq for r in self.received if isinstance(r.event, kind) and suits(r.event)]


class Job:
    """See the module."""

    def __init__(
        self,
        offspring: Offspring,
        home: Path,
        script: str,
        args: Sequence[str] = (),
        *,
        workers: int = 1,
        nodes: int = 1,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            offspring: whose processes they are.
            home: REKNIT_HOME, an empty folder.
            script: file name in bench/scripts.
            args: for the script.
            workers: on each node.
            nodes: more than one: a broker of `reknit up`, and one `reknit run` a node.
            flags: more flags of `reknit run`.
            env: for all processes.
            hosts: put each node on a host of its own.
        """
        self._offspring = offspring
        self.home = home
        self._script = SCRIPTS / script
        self._args = tuple(args)
        self._workers = workers
        self.nodes = [f"n{i}" for i in range(nodes)]
        """Names of the nodes that take part."""
        self._most = nodes
        self._named = nodes
        self._hosts = hosts
        self.host_of: dict[str, Host] = {}
        self._flags = tuple(flags)
        self._env = {"REKNIT_HOME": str(home), "OMP_NUM_THREADS": "1", **(env or {})}
        self._up: subprocess.Popen[bytes] | None = None
        self.launchers: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def log_file(self) -> Path:
        """What launchers and workers print."""
        return self.home / "printed.log"

    def start(self) -> None:
        """Start the job on all its nodes.

        Raises:
            NotInTime: `reknit up` does not come up.
        """
        if self._most > 1:
            self.start_plane()
        for node in self.nodes:
            self._start_node(node, self._hosts.add() if self._hosts else None)

    def start_plane(self) -> None:
        """Start a broker and the four services alone.

        Raises:
            NotInTime: they do not come up.
        """
        where = ["--host", HERE] if self._hosts else []
        self._up = self._reknit("plane", "up", "--foreground", *where)
        wait_for("reknit up", (self.home / "up" / "up.json").is_file, 60.0)

    def plane(self) -> dict[str, int]:
        """Name -> pid of what `reknit up` has started."""
        found = read_up(Home.at(str(self.home)).up)
        return {mark.what: mark.pid for mark in found.children} if found else {}

    def _start_node(self, node: str, host: Host | None) -> None:
        flags = ["--job", NAME, "--node", node, "--nproc-per-node", str(self._workers), "--threads", "1"]
        flags += ["--nnodes", f"1:{self._most}"] if self._most > 1 else ["--standalone"]
        if host:
            flags += ["--host", host.address]
            self.host_of[node] = host
        prefix = host.prefix if host else ()
        command = ("run", *flags, *self._flags, str(self._script), *self._args)
        self.launchers[node] = self._reknit(node, *command, prefix=prefix)

    def kill_node(self, node: str) -> float:
        """SIGKILL all processes of a node; returns when."""
        at = self._offspring.kill(node)
        self.launchers[node].wait()
        return at

    def replace_node(self, node: str) -> str:
        """Start another node in the place of one that is gone, on the same host; returns its name."""
        self.launchers.pop(node)
        host = self.host_of.pop(node, None)
        fresh = f"n{self._named}"
        self._named += 1
        self.nodes[self.nodes.index(node)] = fresh
        self._start_node(fresh, host)
        return fresh

    def _reknit(self, tag: str, *args: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        command = [*prefix, sys.executable, "-P", "-m", "reknit.cli", *args]
        return self._offspring.start(command, tag=tag, log=self.log_file, env=self._env, cwd=self.home)

    def endpoint(self) -> Endpoint | None:
        """Where the job's broker is, None if it is not up yet."""
        home = Home.at(str(self.home))
        return home.up.endpoint() if self._up else home.job(NAME).endpoint()

    def processes(self) -> list[Mark]:
        """Launchers, agents, and the broker and services that they keep, as run.json has them."""
        runs = Home.at(str(self.home)).job(NAME).runs()
        return [mark for node in runs.nodes.values() for mark in (*node.children, node.launcher)]

    @contextlib.contextmanager
    def connected(self) -> Iterator[BusThread]:
        """Be connected to the job's broker, as soon as it is up."""
        wait_for("the broker's address", self.endpoint, 60.0)
        bus = wait_for("the broker", self._connected, 60.0)
        try:
            yield bus
        finally:
            bus.close(0.5)

    @contextlib.contextmanager
    def listening(self) -> Iterator[tuple[BusThread, Log]]:
        """Hear the job's events from the first one on."""
        log = Log()
        with self.connected() as bus:
            bus.follow(log.hear, job=NAME)
            yield bus, log

    def _connected(self) -> BusThread | None:
        endpoint = self.endpoint()
        assert endpoint is not None
        bus = BusThread(endpoint, "bench")
        try:
            bus.start(2.0)
        except ControlPlaneUnreachable:
            return None
        return bus

    def ended(self) -> bool:
        """True when no launcher runs any more."""
        return all(process.poll() is not None for process in self.launchers.values())

    def wait(self, within: float) -> int:
        """Wait for the end of the job and return the first node's exit code.

        Raises:
            NotInTime: it does not end.
        """
        wait_for("the end of the job", self.ended, within)
        return next(iter(self.launchers.values())).returncode

    def stop(self, within: float = 30.0) -> None:
        """End the job politely, by force what does not end in time."""
        for process in self.launchers.values():
            if process.poll() is None:
                process.terminate()
        with contextlib.suppress(NotInTime):
            wait_for("the end of the job", self.ended, within, every=0.05)
        for node in [*self.launchers, "plane"]:
            self._offspring.kill(node)

    def printed(self) -> str:
        """Return the end of what launchers and workers printed."""
        return self.log_file.read_text(errors="replace")[-3000:] if self.log_file.exists() else ""
