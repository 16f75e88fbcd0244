"""What can happen to an agent: each with `now`, the agent's monotonic clock in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reknit.core.events import AnyEvent

from .stuck import Look


@dataclass(frozen=True, slots=True)
class Heard:
    """An event of the job, from the log.

    Attributes:
        event: what was said.
        seq: its place in the stream.
        now: monotonic seconds.
        ahead: what the broker's clock shows, seconds since the epoch, less our monotonic clock.
    """

    event: AnyEvent
    seq: int
    now: float
    ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class Began:
    """The log is read up to our node.joined and beyond: workers may start."""

    now: float


@dataclass(frozen=True, slots=True)
class Forked:
    """A worker process exists."""

    worker: str
    incarnation: int
    pid: int
    now: float


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """No process could be made."""

    worker: str
    error: str
    now: float


@dataclass(frozen=True, slots=True)
class Dying:
    """The kernel has begun to end a worker process; that it was reaped follows.

    Attributes:
        worker: its id.
        pid: of the process.
        now: monotonic seconds.
        others: workers here whose processes were sent SIGKILL too.
    """

    worker: str
    pid: int
    now: float
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker process was reaped.

    Attributes:
        worker: its id.
        pid: which of its processes.
        now: monotonic second of the notice.
        code: exit status, or minus the signal's number.
        out_of_memory: the OOM killer's counter of our cgroup rose.
        machine_short: the machine's rose.
        stderr_tail: its last lines on stderr.
        step: last step its heartbeats told, -1 for none.
        log: path of its log.
    """

    worker: str
    pid: int
    code: int
    now: float
    out_of_memory: bool = False
    machine_short: bool = False
    stderr_tail: str = ""
    step: int = -1
    log: str = ""


@dataclass(frozen=True, slots=True)
class Ticked:
    """A quarter of a second has passed; how the living workers look."""

    now: float
    looks: Mapping[str, Look]


@dataclass(frozen=True, slots=True)
class Signalled:
    """The agent itself got SIGTERM or SIGINT."""

    number: int
    now: float


Input = Heard | Began | Forked | ForkFailed | Dying | Exited | Ticked | Signalled
