"""What a person wants to know of a job, folded from its log and heartbeats; `status` and `run` show it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol

from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    Alert,
    AnyEvent,
    AnyPulse,
    CheckpointCommitted,
    CheckpointRestored,
    JobFinished,
    JobScaled,
    JobSubmitted,
    NodePulse,
    RingRecovered,
    StepsCommitted,
    WorkerExited,
    WorkerFailed,
    WorkerFinished,
    WorkerPulse,
    WorkerRefused,
    WorkerRegistered,
    WorkerStarted,
    WorkerStuck,
    WorldChanged,
)


class Heard(Protocol):
    """One stored event, as `core.bus.Received` is."""

    @property
    def event(self) -> AnyEvent:
        """The event."""

    @property
    def seq(self) -> int:
        """Its sequence in the log."""

    @property
    def time(self) -> float:
        """Wall time of publishing."""


@dataclasses.dataclass(slots=True)
class WorkerView:
    """One worker process as last heard of.

    Attributes:
        state: what the log last said: starting, ready, stuck, failed, exited, finished, refused.
        detail: more about the state, one line.
    """

    worker: str
    node: str
    incarnation: int = 0
    pid: int = 0
    state: str = "starting"
    detail: str = ""
    pulse: WorkerPulse | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong in a worker.

    Attributes:
        what: one line: the exception, or how the process ended.
        traceback: the script's traceback or the last lines of stderr.
        log: path of the worker's log on its node, if known.
        time: wall time, for people.
    """

    worker: str
    what: str
    traceback: str = ""
    log: str = ""
    step: int = -1
    time: float = 0.0


@dataclasses.dataclass(slots=True)
class JobView:
    """A job's newest run.

    Attributes:
        worlds: every world of this run with its wall time.
        failures: what went wrong, in log order: the first is the root.
        alerts: alerts that are raised now, by (alert, subject).
        committed: number of committed steps.
        seq: last sequence folded in.
    """

    job: str
    spec: JobSubmitted | None = None
    submitted: float = 0.0
    finished: JobFinished | None = None
    finished_at: float = 0.0
    nodes: dict[str, AgentJoined] = dataclasses.field(default_factory=dict)
    node_pulses: dict[str, NodePulse] = dataclasses.field(default_factory=dict)
    workers: dict[str, WorkerView] = dataclasses.field(default_factory=dict)
    worlds: list[tuple[WorldChanged, float]] = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)
    alerts: dict[tuple[str, str], Alert] = dataclasses.field(default_factory=dict)
    committed: int = 0
    steps_in_all: int = 0
    epoch: int = 0
    loss: float | None = None
    rate: float = 0.0
    state_hash: str = ""
    checkpoint: CheckpointCommitted | None = None
    restored: CheckpointRestored | None = None
    recoveries: int = 0
    scaled: int = 0
    seq: int = 0

    @property
    def world(self) -> WorldChanged | None:
        """The newest world of this run."""
        return self.worlds[-1][0] if self.worlds else None

    @property
    def status(self) -> str:
        """One word: starting, running, degraded, paused, completed, failed, stopped."""
        if self.finished is not None:
            return self.finished.outcome
        world = self.world
        if world is None:
            return "failed" if self.failures else "starting"
        if world.status == "paused":
            return "paused"
        return "degraded" if self.degraded else "running"

    @property
    def degraded(self) -> str:
        """Why the job is not in full strength although it runs; empty if it is."""
        members = {m.worker: m.incarnation for m in self.world.members} if self.world else {}
        for view in self.workers.values():
            if (
                view.state in {"failed", "exited", "stuck"}
                and members.get(view.worker, view.incarnation) == view.incarnation
            ):
                return f"{view.worker} {view.state}" + (f": {view.detail}" if view.detail else "")
        return ""

    def tell(self, heard: Heard) -> None:
        """Fold in one event of this job."""
        if heard.seq <= self.seq:
            return
        self.seq = heard.seq
        event = heard.event
        if isinstance(event, JobSubmitted | JobFinished | JobScaled | AgentJoined | AgentLeft):
            self._job(event, heard.time)
            return
        match event:
            case WorldChanged():
                self.worlds.append((event, heard.time))
            case StepsCommitted():
                self.committed = event.last + 1
                self.loss = event.loss if event.loss is not None else self.loss
            case RingRecovered():
                self.recoveries += 1
            case Alert():
                self._alert(event)
            case CheckpointCommitted():
                self.checkpoint = event
            case CheckpointRestored():
                self.restored = event
                self.committed = event.step
            case _:
                self._worker(event, heard.time)

    def _job(self, event: JobSubmitted | JobFinished | JobScaled | AgentJoined | AgentLeft, time: float) -> None:
        match event:
            case JobSubmitted():
                self._submitted(event, time)
            case JobFinished() if self.spec and event.run == self.spec.run and self.finished is None:
                self.finished, self.finished_at = event, time
                self.state_hash = event.state_hash or self.state_hash
            case JobScaled():
                self.scaled = event.workers
            case AgentJoined():
                self.nodes[event.node] = event
            case AgentLeft():
                self.nodes.pop(event.node, None)
            case _:
                pass

    def _submitted(self, event: JobSubmitted, time: float) -> None:
        if self.spec is not None and self.finished is None and event.run != self.spec.run:
            return  # refused: a run is alive
        fresh = JobView(self.job, spec=event, submitted=time, seq=self.seq)
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(fresh, field.name))

    def _alert(self, event: Alert) -> None:
        if event.state == "raised":
            self.alerts[event.alert, event.subject] = event
        else:
            self.alerts.pop((event.alert, event.subject), None)

    def _worker(self, event: AnyEvent, time: float) -> None:
        match event:
            case WorkerStarted():
                self.workers[event.worker] = WorkerView(event.worker, event.node, event.incarnation, event.pid)
            case WorkerRegistered():
                self.workers[event.worker] = WorkerView(event.worker, event.node, event.incarnation, event.pid, "ready")
                self._course(event)
            case WorkerFailed():
                self._set(event.worker, event.incarnation, "failed", event.error)
                self.failures.append(Failure(event.worker, event.error, event.traceback, step=event.step, time=time))
            case WorkerExited():
                self._exited(event, time)
            case WorkerFinished():
                self._set(event.worker, event.incarnation, "finished", f"step {event.step}")
                self.state_hash = event.state_hash or self.state_hash
            case WorkerStuck():
                stuck = not event.state.startswith("R")
                self._set(event.worker, event.incarnation, "stuck" if stuck else "ready", event.state if stuck else "")
            case WorkerRefused():
                self._set(event.worker, event.incarnation, "refused", event.reason)
                if event.final:
                    self.failures.append(Failure(event.worker, f"refused: {event.reason}", time=time))
            case _:
                pass

    def _course(self, event: WorkerRegistered) -> None:
        terms = event.terms
        batch = terms.slots * terms.micro_batch
        if batch > 0:
            self.steps_in_all = -(-terms.samples // batch) * terms.epochs

    def _exited(self, event: WorkerExited, time: float) -> None:
        if event.expected or event.code == 0:
            self._set(event.worker, event.incarnation, "finished", "")
            return
        how = f"killed by signal {-event.code} ({event.signal})" if event.code < 0 else f"exit code {event.code}"
        if event.out_of_memory:
            how += ", out of memory"
        self._set(event.worker, event.incarnation, "exited", how)
        for i, failure in enumerate(self.failures):
            # the exit that follows from an exception adds where its log is, not another failure
            if failure.worker == event.worker and not failure.log and failure.traceback and event.code > 0:
                self.failures[i] = dataclasses.replace(failure, log=event.log)
                return
        self.failures.append(Failure(event.worker, how, event.stderr_tail, event.log, event.last_step, time))

    def _set(self, worker: str, incarnation: int, state: str, detail: str) -> None:
        view = self.workers.get(worker)
        if view is None:
            view = self.workers[worker] = WorkerView(worker, "", incarnation)
        if incarnation >= view.incarnation:
            view.state, view.detail = state, detail

    def feel(self, pulse: AnyPulse) -> None:
        """Fold in one heartbeat."""
        if isinstance(pulse, NodePulse):
            self.node_pulses[pulse.node] = pulse
            return
        view = self.workers.setdefault(pulse.worker, WorkerView(pulse.worker, "", pulse.incarnation))
        if pulse.incarnation < view.incarnation:
            return
        view.pulse = pulse
        self.steps_in_all = pulse.steps_in_all or self.steps_in_all
        if pulse.current and pulse.committed >= self.committed:
            self.committed = pulse.committed
            self.epoch = pulse.epoch
            self.rate = pulse.rate or self.rate
            self.loss = pulse.loss if pulse.loss is not None else self.loss

    def root(self) -> Failure | None:
        """What went wrong first, in time; None if nothing did."""
        if self.finished is not None and self.finished.root_worker:
            for failure in self.failures:
                if failure.worker == self.finished.root_worker:
                    return failure
        return self.failures[0] if self.failures else None


def view_of(job: str, log: Iterable[Heard]) -> JobView:
    """Fold a whole log."""
    view = JobView(job)
    for heard in log:
        view.tell(heard)
    return view
