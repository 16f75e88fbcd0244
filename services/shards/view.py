"""What the shards service knows of one job: a fold of the log, and the measured speed from heartbeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from reknit.core.errors import UsageError
from reknit.core.events import (
    AnyEvent,
    CheckpointRestored,
    DrainAsked,
    EpochFinished,
    JobFinished,
    JobSubmitted,
    ShardsPlanned,
    StepsCommitted,
    WorkerCaughtUp,
    WorkerLeaving,
    WorkerPulse,
    WorkerRegistered,
    WorldChanged,
)
from reknit.core.ledger import course_of
from reknit.core.order import Course

from .currency import Key, current_in, key_of
from .epochs import Committed
from .pace import Pace


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """One job.

    Attributes:
        job: its name.
        run: the run that goes on; empty before the first.
        over: True once the run is finished.
        world: the newest world of the run, None before the first.
        world_trace: traceparent of the world's publication.
        members: who is in the world.
        registered: worker -> its newest registration in this run.
        course: the run's course; None until a member of a world told its terms.
        current: who holds current state, in the world or outside it.
        leaving: who asked, or was asked, to leave.
        plan: the newest plan of the run.
        plan_seq: log sequence of the job's newest plan of any run, 0 if there is none: what a new one must follow.
        committed: steps of epochs that are not announced yet.
        pace: measured speed.
        asked: id of a publication asked for -> monotonic time; it comes back from the log or is asked for again.
    """

    job: str
    run: str = ""
    over: bool = False
    world: WorldChanged | None = None
    world_trace: str = ""
    members: frozenset[Key] = frozenset()
    registered: Mapping[str, WorkerRegistered] = dataclasses.field(default_factory=dict)
    course: Course | None = None
    current: frozenset[Key] = frozenset()
    leaving: frozenset[Key] = frozenset()
    plan: ShardsPlanned | None = None
    plan_seq: int = 0
    committed: Committed = dataclasses.field(default_factory=Committed)
    pace: Pace = dataclasses.field(default_factory=Pace)
    asked: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def seconds(self) -> dict[str, float]:
        """Smoothed compute seconds a slot of the members of the world that were measured."""
        members = self.world.members if self.world else ()
        return {m.worker: self.pace.seconds[key_of(m)] for m in members if key_of(m) in self.pace.seconds}


def see(view: View, event: AnyEvent, seq: int, trace: str) -> View:  # noqa: PLR0911 - a table
    """Take in one event of the log."""
    match event:
        case JobSubmitted():
            return _run(view, event.run) if view.over or not view.run else view
        case JobFinished() if event.run == view.run:
            return dataclasses.replace(view, over=True)
        case WorkerRegistered():
            return _registered(view, event)
        case WorldChanged():
            return _world(view if event.run == view.run else _run(view, event.run), event, trace)
        case WorkerCaughtUp():
            return _caught_up(view, event)
        case WorkerLeaving():
            return dataclasses.replace(view, leaving=view.leaving | {(event.worker, event.incarnation)})
        case DrainAsked():
            return dataclasses.replace(view, leaving=view.leaving | _meant(view, event.target))
        case ShardsPlanned():
            return _planned(view, event, seq)
        case StepsCommitted() if event.run == view.run and view.course is not None:
            return dataclasses.replace(view, committed=view.committed.commit(event, view.course))
        case CheckpointRestored() if event.run == view.run:
            return _restored(view, event)
        case EpochFinished() if view.course is not None:
            return dataclasses.replace(view, committed=view.committed.announce(event, view.course))
        case _:
            return view


def hear(view: View, pulse: WorkerPulse) -> View:
    """Take in a heartbeat; only members of the present generation count."""
    world = view.world
    key = (pulse.worker, pulse.incarnation)
    if world is None or pulse.generation != world.generation or key not in view.members:
        return view
    return dataclasses.replace(view, pace=view.pace.observe(pulse))


def _registered(view: View, event: WorkerRegistered) -> View:
    """A new incarnation begins without the state; the same one once more only has a new connection."""
    now = (event.worker, event.incarnation)
    current = frozenset(key for key in view.current if key[0] != event.worker or key == now or key in view.members)
    return dataclasses.replace(view, registered={**view.registered, event.worker: event}, current=current)


def _caught_up(view: View, event: WorkerCaughtUp) -> View:
    """Believe members, and whoever has registered in this run to become one."""
    key, told = (event.worker, event.incarnation), view.registered.get(event.worker)
    outside = told is not None and told.run == view.run and told.incarnation == event.incarnation
    return dataclasses.replace(view, current=view.current | {key}) if outside or key in view.members else view


def _restored(view: View, event: CheckpointRestored) -> View:
    """Whoever restored has the state: the others learn from it."""
    told = {key_of(m) for m in view.world.members if m.worker == event.worker} if view.world else set()
    return dataclasses.replace(view, current=view.current | told, committed=view.committed.restore(event))


def _run(view: View, run: str) -> View:
    """Begin another run: all is forgotten but what spans runs, the plan log's end and the committed line."""
    kept = {w: r for w, r in view.registered.items() if r.run == run}
    return View(view.job, run=run, registered=kept, plan_seq=view.plan_seq, committed=view.committed)


def _world(view: View, world: WorldChanged, trace: str) -> View:
    if view.world is not None and world.generation <= view.world.generation:
        return view
    keys = frozenset(map(key_of, world.members))
    return dataclasses.replace(
        view,
        world=world,
        world_trace=trace,
        members=keys,
        course=view.course or _course(view, world),
        current=_current(view, world, keys),
        leaving=view.leaving & keys,
        pace=view.pace.keep(keys),
    )


def _current(view: View, world: WorldChanged, keys: frozenset[Key]) -> frozenset[Key]:
    """In a paused world nobody steps, so nobody comes by the state."""
    inside = current_in(keys, view.current) if world.status == "running" else keys & view.current
    return inside | (view.current - view.members)


def _course(view: View, world: WorldChanged) -> Course | None:
    for member in world.members:
        told = view.registered.get(member.worker)
        if told is not None:
            try:
                return course_of(told.terms)
            except UsageError:
                return None
    return None


def _meant(view: View, target: str) -> frozenset[Key]:
    """Return whom a drain means, by worker or node: those that are here now, not who comes later under the name."""
    members = view.world.members if view.world else ()
    inside = {key_of(m) for m in members if target in (m.worker, m.node)}
    waiting = {(r.worker, r.incarnation) for r in view.registered.values() if target in (r.worker, r.node)}
    return frozenset(inside | waiting)


def _planned(view: View, plan: ShardsPlanned, seq: int) -> View:
    view = dataclasses.replace(view, plan_seq=max(seq, view.plan_seq))
    newest = view.plan is None or (plan.generation, plan.version) > (view.plan.generation, view.plan.version)
    return dataclasses.replace(view, plan=plan) if newest else view
