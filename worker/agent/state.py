"""What the agent knows: one frozen `State` of the node, one frozen `Place` for each worker it may keep alive."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from .stuck import Stillness

Phase = Literal["waiting", "forking", "alive", "ending", "killed", "empty"]
"""waiting: to be forked at `due`; forking; alive; ending: asked to leave, killed at `deadline`; killed: SIGKILL sent,
given up as unreaped at `deadline`; empty: no process, and none wanted."""

Mode = Literal["starting", "running", "draining", "finishing", "failing", "ended"]
"""starting: the log is being read; draining: this node leaves; finishing: the run is completed, scripts may go on to
their end; failing: the run failed."""


@dataclass(frozen=True, slots=True)
class Place:
    """A worker id of this node and the process that has it now, if any.

    Attributes:
        worker: the id, `<node>-<index>`.
        phase: see `Phase`.
        wanted: the node shall keep a worker here; False after a scale down or a drain of this worker.
        due: monotonic second of the next fork (waiting).
        deadline: monotonic second of the next measure (ending, killed).
        attempt: processes forked so far.
        failures: failures in a row.
        incarnation: of the present process, else of the last one.
        pid: of the present process, else of the last one.
        forked_at: monotonic second.
        registered: this process has asked to be let in.
        ever_registered: some process of this id had.
        member: this process is, as far as the log goes, in the world.
        spare: ... as a spare.
        finished: this process left the step loop with the last step applied.
        leaving: this process leaves politely, whoever asked it.
        evicted_at: monotonic second at which a newer world came without this living process.
        stillness: see `stuck`.
        step: last step heard of, -1 for none.
        refused: why the job does not let it in.
        error: what its script raised, one line.
        why: why we end it, in words; empty while we do not.
        again: after we have killed it a fresh one takes its place.
        tail: last stderr lines of its last failure.
        log: path of its log.
        result: how its last process ended: `ok`, `failed`, or empty for neither.
    """

    worker: str
    phase: Phase = "waiting"
    wanted: bool = True
    due: float = 0.0
    deadline: float = 0.0
    attempt: int = 0
    failures: int = 0
    incarnation: int = 0
    pid: int = 0
    forked_at: float = 0.0
    registered: bool = False
    ever_registered: bool = False
    member: bool = False
    spare: bool = False
    finished: bool = False
    leaving: bool = False
    evicted_at: float | None = None
    stillness: Stillness = field(default_factory=Stillness)
    step: int = -1
    refused: str = ""
    error: str = ""
    why: str = ""
    again: bool = False
    tail: str = ""
    log: str = ""
    result: Literal["", "ok", "failed"] = ""

    @property
    def living(self) -> bool:
        """True while there is a process, or one is being forked."""
        return self.phase in {"forking", "alive", "ending", "killed"}

    @property
    def busy(self) -> bool:
        """True while there is, or will be, a process."""
        return self.living or self.phase == "waiting"


@dataclass(frozen=True, slots=True)
class State:
    """The node.

    Attributes:
        node: its name.
        job: the job's name.
        run: unique id of the run.
        grace: seconds from SIGTERM to SIGKILL.
        evict_grace: seconds that an evicted worker gets to come back.
        places: by index.
        mode: see `Mode`.
        joined: stream sequence of our node.joined; 0 until it is known.
        begun: the log has come to our run's submission.
        host: where this agent runs, to recognise a second agent of the node's name.
        pid: this agent's.
        training: the newest world of the run is at work.
        held_until: monotonic second at which the node's quarantine ends, 0: it is in none.
        held_why: what for, in words.
        target: how many workers the node shall keep, as last told.
        why: why the node drains, or how the run ended.
        code: exit code so far.
        root: the failure that everything began with, for the last words.
        hurry: nobody is asked any more, only killed.
        signals: how many SIGTERM and SIGINT so far.
        linger_until: monotonic second until which an agent without workers waits for the run's end.
        unreaped: pids that even SIGKILL did not end.
    """

    node: str
    job: str
    run: str
    grace: float
    evict_grace: float
    places: tuple[Place, ...]
    mode: Mode = "starting"
    joined: int = 0
    begun: bool = False
    host: str = ""
    pid: int = 0
    training: bool = False
    held_until: float = 0.0
    held_why: str = ""
    target: int = 0
    why: str = ""
    code: int = 0
    root: str = ""
    hurry: bool = False
    signals: int = 0
    linger_until: float | None = None
    unreaped: tuple[int, ...] = ()

    def place(self, worker: str) -> Place | None:
        """Return the place of a worker id, None if it is not of this node."""
        return next((p for p in self.places if p.worker == worker), None)

    def with_place(self, place: Place) -> State:
        """Return the state with one place replaced."""
        return dataclasses.replace(self, places=tuple(place if p.worker == place.worker else p for p in self.places))


def place_id(node: str, index: int) -> str:
    """Return the id of a node's worker."""
    return f"{node}-{index}"


def fresh(node: str, job: str, run: str, nproc: int, *, grace: float, evict_grace: float, host: str, pid: int) -> State:
    """Return the state of a node whose agent has just started."""
    places = tuple(Place(place_id(node, i)) for i in range(nproc))
    return State(node, job, run, grace, evict_grace, places, host=host, pid=pid, target=nproc)
