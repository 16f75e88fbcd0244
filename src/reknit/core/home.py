"""What jobs leave on this machine: one folder a job under the home, and `up/` for the shared control plane.

```
<home>/up/            a broker and services for many jobs (`reknit up`)
<home>/jobs/<job>/    endpoint.json, secret (both 0600)   how to get in
                      run.json                            the processes of each node that runs here
                      control.lock                        held by whoever runs the broker over `broker/`
                      broker/  logs/  traces/  checkpoints/
```

Used like this: `job = Home.at(settings.control.home).job("mnist")`, `job.secret()`, `with job.control("run"): …`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reknit.core.context import Endpoint
from reknit.core.errors import UsageError
from reknit.core.subjects import valid_name

SECRET_BYTES = 32


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One process, told from a later one of the same pid by the moment it started."""

    pid: int
    started: int
    """Clock ticks since boot (field 22 of /proc/<pid>/stat)."""
    what: str = ""

    @property
    def alive(self) -> bool:
        """True while exactly this process exists and is no zombie."""
        return 0 <= self.started == _started(self.pid)

    @classmethod
    def of(cls, pid: int, what: str = "") -> Mark:
        """Mark a living process (a dead one gets a mark that is never alive)."""
        return cls(pid=pid, started=_started(pid), what=what)


def _started(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return -1
    # the command in parentheses may hold anything, also spaces and parentheses
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" else int(fields[19])


class NodeRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one `reknit run` has started on this machine."""

    node: str
    run: str
    launcher: Mark
    children: tuple[Mark, ...] = ()
    script: str = ""
    since: float = 0.0
    """Wall time, for people."""


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of run.json."""

    job: str
    nodes: dict[str, NodeRun] = {}
    checkpoint_dir: str = ""
    """Of the newest run here."""


@dataclasses.dataclass(frozen=True, slots=True)
class ControlFolder:
    """A folder with a broker's store: that of one job, or `up/`."""

    path: Path

    @property
    def name(self) -> str:
        """The job's name, or `up`."""
        return self.path.name

    @property
    def store(self) -> Path:
        """The broker's store."""
        return self.path / "broker"

    @property
    def logs(self) -> Path:
        """Logs of services and workers."""
        return self.path / "logs"

    @property
    def traces(self) -> Path:
        """Spans, one JSONL file a process."""
        return self.path / "traces"

    @property
    def endpoint_file(self) -> Path:
        """Where the broker is and how to get in."""
        return self.path / "endpoint.json"

    def make(self) -> None:
        """Create the folder and what lies in it, readable by its owner only.

        Raises:
            UsageError: it cannot be created or written.
        """
        try:
            for folder in (self.path, self.logs, self.traces):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.chmod(0o700)
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be used: {error.strerror or error}",
                hint="set REKNIT_HOME to a folder that you may write to",
            ) from error

    def endpoint(self) -> Endpoint | None:
        """Read endpoint.json, None if there is none or it is damaged."""
        return read_endpoint(self.endpoint_file) if self.endpoint_file.is_file() else None

    def keep_endpoint(self, endpoint: Endpoint) -> None:
        """Write endpoint.json, 0600."""
        write_private(self.endpoint_file, msgspec.json.format(msgspec.json.encode(endpoint), indent=2))

    @contextlib.contextmanager
    def control(self, who: str, *, wait: float = 0.0) -> Iterator[bool]:
        """Hold the right to run the broker over this store; yields False if another process holds it.

        The lock is the kernel's and ends with the process, however that dies.

        Args:
            who: written into the lock for people.
            wait: seconds to wait for another holder to be done.
        """
        fd = os.open(self.path / "control.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            mine = _flock(fd, time.monotonic() + wait)
            if mine:
                os.truncate(fd, 0)
                os.pwrite(fd, f"{who} {os.getpid()}".encode(), 0)
            yield mine
        finally:
            os.close(fd)

    @property
    def controlled(self) -> bool:
        """True while some process holds the control of this store (and so runs its broker)."""
        if not (self.path / "control.lock").is_file():
            return False
        fd = os.open(self.path / "control.lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            return not _flock(fd, time.monotonic())
        finally:
            os.close(fd)

    def holder(self) -> str:
        """Who held the control last: `<what> <pid>`."""
        try:
            return (self.path / "control.lock").read_text()
        except OSError:
            return ""


@dataclasses.dataclass(frozen=True, slots=True)
class JobFolder(ControlFolder):
    """One job's folder."""

    @property
    def checkpoints(self) -> Path:
        """Default folder of the job's checkpoints."""
        return self.path / "checkpoints"

    @property
    def run_file(self) -> Path:
        """The processes of each node that runs here."""
        return self.path / "run.json"

    def secret(self) -> str:
        """The job's secret, made at first use.

        Raises:
            UsageError: unreadable or empty.
        """
        file = self.path / "secret"
        if not file.exists():
            new = file.with_name(f".secret.{os.getpid()}-{secrets.token_hex(4)}")
            write_private(new, secrets.token_hex(SECRET_BYTES).encode())
            with contextlib.suppress(FileExistsError):  # two nodes of this machine at once: the first one's holds
                os.link(new, file)
            new.unlink(missing_ok=True)
        return read_secret(file)

    @contextlib.contextmanager
    def claim(self, node: str) -> Iterator[bool]:
        """Hold a node's name among the launchers of this machine; yields False if another one has it."""
        folder = self.path / "nodes"
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(folder / f"{node}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _flock(fd, time.monotonic())
        finally:
            os.close(fd)

    def claimed(self) -> set[str]:
        """Names of nodes that launchers of this machine hold now."""
        taken = set()
        for file in (self.path / "nodes").glob("*.lock"):
            with self.claim(file.stem) as free:
                if not free:
                    taken.add(file.stem)
        return taken

    def runs(self) -> RunFile:
        """Read run.json; empty if there is none."""
        try:
            return msgspec.json.decode(self.run_file.read_bytes(), type=RunFile)
        except (OSError, msgspec.MsgspecError):
            return RunFile(job=self.name)

    def checkpoint_dir(self) -> str:
        """Where the newest run here keeps its checkpoints."""
        return self.runs().checkpoint_dir or str(self.checkpoints)

    def note(self, node: NodeRun | None, name: str, checkpoint_dir: str = "") -> None:
        """Enter a node into run.json (None: take it out); safe against other nodes of this machine doing the same."""
        fd = os.open(self.path / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            before = self.runs()
            nodes = {n: r for n, r in before.nodes.items() if n != name and r.launcher.alive}
            if node is not None:
                nodes[name] = node
            where = checkpoint_dir or before.checkpoint_dir
            text = msgspec.json.encode(RunFile(job=self.name, nodes=nodes, checkpoint_dir=where))
            write_private(self.run_file, msgspec.json.format(text, indent=2))
        finally:
            os.close(fd)

    @property
    def used(self) -> float:
        """When a run last began or ended here (wall time)."""
        for file in (self.run_file, self.endpoint_file, self.path):
            with contextlib.suppress(OSError):
                return file.stat().st_mtime
        return 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Home:
    """The folder for what jobs leave on this machine."""

    root: Path

    @classmethod
    def at(cls, setting: str = "") -> Home:
        """Open the home that the setting names, by default `~/.local/state/reknit`.

        Raises:
            UsageError: no home directory can be found for this user.
        """
        if setting:
            return cls(Path(setting).expanduser().absolute())
        try:
            return cls(Path.home() / ".local" / "state" / "reknit")
        except RuntimeError as error:
            raise UsageError(f"there is no home directory: {error}", hint="set REKNIT_HOME") from error

    @property
    def up(self) -> ControlFolder:
        """The control plane of `reknit up`."""
        return ControlFolder(self.root / "up")

    def job(self, name: str) -> JobFolder:
        """The folder of a job; it need not exist.

        Raises:
            UsageError: not a valid name.
        """
        return JobFolder(self.root / "jobs" / valid_name(name, "job"))

    def jobs(self) -> list[JobFolder]:
        """All jobs known here, the most recently used first."""
        try:
            found = [JobFolder(path) for path in (self.root / "jobs").iterdir() if path.is_dir()]
        except OSError:
            return []
        return sorted(found, key=lambda job: (-job.used, job.name))


def _flock(fd: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)


def read_endpoint(file: Path) -> Endpoint | None:
    """Read an endpoint from a file, None if it is not one."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Endpoint)
    except (OSError, msgspec.MsgspecError):
        return None


def read_secret(file: Path) -> str:
    """Read a job's secret from a file.

    Raises:
        UsageError: unreadable or empty.
    """
    try:
        secret = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the secret file {file} cannot be read: {error}") from error
    if not secret:
        raise UsageError(f"the secret file {file} is empty")
    return secret


def secret_check(secret: str, job: str) -> str:
    """What proves that two nodes hold the same secret, without telling it: HMAC-SHA256 of the job's name."""
    return hmac.new(secret.encode(), job.encode(), hashlib.sha256).hexdigest()


def write_private(file: Path, data: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all.

    Raises:
        UsageError: the folder cannot be written.
    """
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(data)
        new.replace(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from error
