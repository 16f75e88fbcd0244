"""What goes on in a job, as data: the monitor's view, and what `reknit status` shows.

    status = Status(job)
    for r in await bus.backlog(job=job):
        status = see(status, r.event, now=0.0, wall=r.time)     # core.status_fold
    report(status)                                              # plain values for JSON

Pure: times are the reader's own monotonic receive times, in seconds; `wall` is for people only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from reknit.core.discovery.match import Listed
from reknit.core.errors import UsageError
from reknit.core.events import (
    Alert,
    JobFinished,
    JobSubmitted,
    ListedHost,
    NodeHeld,
    NodePulse,
    ShardsPlanned,
    Terms,
    WorkerExited,
    WorkerFailed,
    WorkerPulse,
    WorldChanged,
)
from reknit.core.headcount import spares_of
from reknit.core.ledger import course_of

GONE = frozenset({"finished", "lost", "dead"})
"""States of workers that take no part any more."""
MOST_WORLDS = 200
_MOST_NAMED = 4
MOST_LOSSES = 400
"""Points of the loss curve; when there are more, every second of them is dropped."""

Key = tuple[str, str]
"""(alert, subject)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """One worker, in its newest incarnation; a new incarnation begins with a fresh record.

    Attributes:
        state: `starting`, `ready` (registered; it has caught up, or there is nothing to learn), `learning` (beside the
            ring or in it), `active`, `spare`, `leaving`, `finished`, `lost` (taken out of the world), `dead` (exited)
            or `refused`.
        current: it has the run's state.
        note: why, in words.
        stuck: kernel process state in words while the process does not run.
        heard: monotonic seconds of the newest heartbeat, None: never.
        since: monotonic seconds since when this incarnation is known.
    """

    worker: str
    incarnation: int
    node: str = ""
    pid: int = 0
    state: str = "starting"
    note: str = ""
    stuck: str = ""
    current: bool = False
    pulse: WorkerPulse | None = None
    heard: float | None = None
    since: float = 0.0
    exit: WorkerExited | None = None
    failure: WorkerFailed | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One node's agent."""

    node: str
    host: str = ""
    up: bool = True
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pulse: NodePulse | None = None
    heard: float | None = None
    left: str = ""
    """Why it left, empty while it is there."""
    left_at: float = 0.0
    """Wall time at which that was said, 0 while it is there."""
    arrival: int = 0
    """Sequence of its newest `node.joined`, 0 where the reader tells none."""
    seen: float = 0.0
    """Wall time of the newest event by or about it, for people."""
    comings: int = 0
    """How often its agent came in this run, the first time included."""
    restarts: int = 0
    """Unexpected exits of its workers in this run."""
    held: Mapping[str, NodeHeld] = dataclasses.field(default_factory=dict)
    """Cause -> what membership said last about keeping it out."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorldLine:
    """One line of the world history."""

    generation: int
    status: str
    members: tuple[str, ...]
    reason: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    wall: float
    recovered: float | None = None
    """Seconds from the first notice of the break to the next committed step."""
    planned: bool = False
    """Nobody was lost: the step in flight ended in the world before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Saving:
    """What is known of the run's checkpoints."""

    step: int = -1
    checkpoint: str = ""
    path: str = ""
    at: float | None = None
    """Monotonic seconds of the newest commit."""
    in_flight: str = ""
    failed: str = ""
    """Reason of the newest failure, empty after a later commit."""
    failed_id: str = ""
    """Id of the newest one that failed."""
    failures: int = 0
    """Checkpoints that failed since the newest commit."""
    begun: bool = False
    """A file of the one in flight is written."""
    restored: int = -1
    """Steps in the checkpoint that the run went on from, until one of its own is committed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """One job.

    Attributes:
        committed: committed steps on the run's line: the next step to run.
        committed_in: generation of the newest committed step.
        ahead: newest (generation, committed steps) of any heartbeat.
        moved: monotonic seconds when a step was seen to be committed last, None: never.
        changed: monotonic seconds of the newest world.
        began: monotonic seconds when the world began to run last (first world, or after a pause).
        lost: worker -> why it was taken out, for those that were not to go and are not back.
        apart: those of them that live, and were put out because no ring with them can be linked.
        inexact: worker -> in what its arithmetic differs, for those that were let in all the same.
        not_finite: first step of which the loss was not finite, -1: none since the loss is finite again.
        hosts: that shall take part, where a script or a file lists them.
        alerts: raised ones; `numbers`: how often each was raised so far.
    """

    job: str
    run: str = ""
    spec: JobSubmitted | None = None
    terms: Terms | None = None
    world: WorldChanged | None = None
    changed: float = 0.0
    began: float = 0.0
    worlds: tuple[WorldLine, ...] = ()
    workers: Mapping[str, Worker] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    hosts: tuple[ListedHost, ...] = ()
    wanted: int = 0
    plan: ShardsPlanned | None = None
    committed: int = 0
    committed_in: int = 0
    ahead: tuple[int, int] = (0, 0)
    moved: float | None = None
    loss: float | None = None
    losses: tuple[tuple[int, float], ...] = ()
    inexact: Mapping[str, str] = dataclasses.field(default_factory=dict)
    not_finite: int = -1
    computed_again: int = 0
    epochs: int = 0
    saving: Saving = dataclasses.field(default_factory=Saving)
    lost: Mapping[str, str] = dataclasses.field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    stopping: str = ""
    finished: JobFinished | None = None
    alerts: Mapping[Key, Alert] = dataclasses.field(default_factory=dict)
    numbers: Mapping[Key, int] = dataclasses.field(default_factory=dict)

    @property
    def members(self) -> tuple[Worker, ...]:
        """Members of the present world, in ring order."""
        names = self.world.members if self.world else ()
        return tuple(self.workers[m.worker] for m in names if m.worker in self.workers)

    @property
    def teaches(self) -> bool:
        """True if a ring runs in which somebody has the state: newcomers learn beside it."""
        running = self.world is not None and self.world.status == "running" and self.finished is None
        return running and any(w.current and w.state not in GONE for w in self.members)

    @property
    def slots(self) -> int:
        """Slots of a step, 0 if not known yet."""
        return self.terms.slots if self.terms else self.spec.slots if self.spec else 0

    @property
    def steps(self) -> int:
        """Steps of the whole run, 0 if not known yet."""
        try:
            return course_of(self.terms).steps if self.terms else 0
        except UsageError:
            return 0

    @property
    def steps_an_epoch(self) -> int:
        """Steps of one epoch, 0 if not known yet."""
        try:
            return course_of(self.terms).steps_an_epoch if self.terms else 0
        except UsageError:
            return 0

    @property
    def state(self) -> str:
        """One word: `starting`, `running`, `degraded`, `paused`, `stopping`, or the outcome."""
        if self.finished is not None:
            return self.finished.outcome
        if self.world is None:
            return "starting"
        if self.world.status != "running":
            return "paused" if self.world.status == "paused" else "finishing"
        if self.stopping:
            return "stopping"
        return "degraded" if self.trouble else "running"

    @property
    def trouble(self) -> str:
        """Why the job is `degraded` while it runs, in words: who is missing, and what is raised; empty: it is not."""
        missing = sorted(self.lost)
        some = [*missing[:_MOST_NAMED], *([f"{len(missing) - _MOST_NAMED} more"] if len(missing) > _MOST_NAMED else [])]
        said = [f"{', '.join(some)} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
        said += [
            alert.alert if alert.subject == self.job else f"{alert.alert} ({alert.subject})"
            for alert in by_weight(self.alerts)
            # one that says that it is paused is about to be cleared
            if alert.severity != "info" and alert.subject not in self.lost and alert.alert != "job-below-min"
        ]
        return ", ".join(said)


def report(status: Status, now: float | None = None) -> dict[str, Any]:
    """Return plain values for JSON: job, run, state, progress, world, workers, nodes, plan, checkpoint, alerts, worlds.

    Args:
        status: the fold.
        now: the reader's monotonic time, for the age of heartbeats; None: built from the log alone.
    """
    world, spec, end = status.world, status.spec, status.finished
    return {
        "job": status.job,
        "run": status.run,
        "script": spec.script if spec else "",
        "state": status.state,
        "outcome": end.outcome if end else "",
        "reason": _reason(status),
        "root_worker": end.root_worker if end else "",
        "state_hash": end.state_hash if end else "",
        "progress": _progress(status, now),
        "world": {
            "generation": world.generation if world else 0,
            "status": world.status if world else "",
            "size": len(world.members) if world else 0,
            "spares": spares_of(world.members, status.slots) if world else 0,
            "members": [m.worker for m in world.members] if world else [],
            "reason": world.reason if world else "",
            "planned": world.planned if world else False,
            "awaiting": world.awaiting if world else "",
            "restarts": world.restarts if world else 0,
        },
        "workers": [_worker(worker, now, status.committed) for worker in _in_ring_order(status)],
        "lost": dict(status.lost),
        "inexact": dict(status.inexact),
        "nodes": [
            {
                "node": n.node,
                "host": n.host,
                "up": n.up,
                "load": n.pulse.load if n.pulse else None,
                "restarts": n.restarts,
                "flaps": max(n.comings - 1, 0),
            }
            for n in status.nodes.values()
        ],
        "hosts": _hosts(status),
        "plan": _plan(status.plan),
        "checkpoint": {
            "step": status.saving.step,
            "id": status.saving.checkpoint,
            "path": status.saving.path,
            "in_flight": status.saving.in_flight,
            "failed": status.saving.failed,
        },
        "alerts": [_alert(alert) for alert in by_weight(status.alerts)],
        "worlds": [
            {
                "generation": w.generation,
                "status": w.status,
                "size": len(w.members),
                "added": list(w.added),
                "removed": list(w.removed),
                "reason": w.reason,
                "time": w.wall,
                "recovered_seconds": w.recovered,
                "planned": w.planned,
            }
            for w in status.worlds
        ],
    }


def _reason(status: Status) -> str:
    if status.finished is not None:
        return status.finished.reason
    awaiting = status.world.awaiting if status.world else ""
    return awaiting or status.stopping or (status.trouble if status.state == "degraded" else "")


def _hosts(status: Status) -> list[dict[str, Any]]:
    """The listed hosts, each with the nodes that are up on it; none: it is awaited."""
    on: dict[str, list[str]] = {host.host: [] for host in status.hosts}
    listed = Listed(status.hosts)
    for node in status.nodes.values():
        host = listed.find(node.node, node.host, node.labels) if node.up else None
        if host is not None:
            on[host.host].append(node.node)
    return [{"host": h.host, "slots": h.slots, "nodes": on[h.host]} for h in status.hosts]


def by_weight(alerts: Mapping[Key, Alert]) -> list[Alert]:
    """Return the alerts, the gravest first."""
    weight = {"critical": 0, "warning": 1, "info": 2}
    return sorted(alerts.values(), key=lambda a: (weight[a.severity], a.alert, a.subject))


def finite(value: float | None) -> float | None:
    """Return the value if JSON can hold it, else None."""
    return value if value is not None and math.isfinite(value) else None


def _in_ring_order(status: Status) -> list[Worker]:
    inside = list(status.members)
    rest = [w for name, w in sorted(status.workers.items()) if w not in inside]
    return inside + rest


def _progress(status: Status, now: float | None) -> dict[str, Any]:
    pulses = [w.pulse for w in status.members if w.pulse is not None and now is not None]
    ahead = max(pulses, key=lambda p: (p.generation, p.committed), default=None)
    committed = max(status.committed, ahead.committed if ahead else 0)
    terms = status.terms
    rate = max((p.rate for p in pulses), default=0.0) if status.state in ("running", "degraded", "stopping") else 0.0
    samples = ahead.samples if ahead and ahead.samples else 0
    left, per_step = max(status.steps - committed, 0), ahead.step_seconds if ahead else 0.0
    loss = ahead.loss if ahead is not None and ahead.loss is not None else status.loss
    return {
        "committed": committed,
        "steps": status.steps,
        # by the steps: a worker that has yet to restore the state is heard to be in the first epoch
        "epoch": committed // status.steps_an_epoch if status.steps_an_epoch else status.epochs,
        "epochs": terms.epochs if terms else 0,
        "samples": samples,
        "rate": finite(rate),
        "step_seconds": finite(per_step),
        "seconds_left": finite(left * per_step) if per_step else None,
        "loss": finite(loss),
        "loss_finite": status.not_finite < 0,
        "computed_again": status.computed_again,
    }


def learning_in_words(worker: Worker, committed: int) -> str:
    """Say how far a worker is that learns; empty for others.

    Args:
        worker: with its newest heartbeat.
        committed: steps that the run has committed.
    """
    if worker.state != "learning":
        return ""
    if worker.pulse is None or worker.pulse.committed <= 0:
        return "receives the state"
    behind = committed - worker.pulse.committed
    return f"{behind} step{'' if behind == 1 else 's'} behind" if behind > 0 else "up to date"


def _worker(worker: Worker, now: float | None, committed: int) -> dict[str, Any]:
    pulse = worker.pulse
    plain: dict[str, Any] = {
        "worker": worker.worker,
        "incarnation": worker.incarnation,
        "node": worker.node,
        "pid": worker.pid,
        "state": worker.state,
        "note": learning_in_words(worker, committed) or worker.note,
        "stuck": worker.stuck,
        "log": worker.exit.log if worker.exit else "",
    }
    if pulse is not None:
        plain |= {
            "phase": pulse.phase,
            "in_phase": finite(pulse.in_phase),
            "step": pulse.step,
            "rate": finite(pulse.rate),
            "step_seconds": finite(pulse.step_seconds),
            "compute_seconds": finite(pulse.compute_seconds),
            "slots": pulse.slots,
            "loss": finite(pulse.loss),
            "rss": pulse.rss,
            "silent": max(now - worker.heard, 0.0) if now is not None and worker.heard is not None else None,
        }
    return plain


def _plan(plan: ShardsPlanned | None) -> dict[str, Any]:
    if plan is None:
        return {}
    return {
        "generation": plan.generation,
        "version": plan.version,
        "slots": plan.slots,
        "ranges": {r.worker: [r.first, r.end] for r in plan.ranges},
        "reason": plan.reason,
    }


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.alert,
        "subject": alert.subject,
        "severity": alert.severity,
        "reason": alert.reason,
        "suggestion": alert.suggestion,
        "number": alert.number,
    }
