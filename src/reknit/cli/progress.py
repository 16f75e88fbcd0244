"""What a run shows while it goes on: one live line, and a line for each thing that changes. Pure."""

from __future__ import annotations

from reknit.core.events import (
    Alert,
    AnyEvent,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRestored,
    JobScaled,
    WorldChanged,
)
from reknit.core.headcount import TO_GET_ONE, headcount, workers
from reknit.core.manifest import run_of
from reknit.core.status import GONE, Status, Worker

from .output import Colour

_TOLD_ELSEWHERE = frozenset({"job-failed", "worker-failed", "job-below-min", "checkpoint-failed"})
"""Alerts that say again what a world's or a checkpoint's line, the worker's own traceback or the summary says."""


def underway(status: Status) -> bool:
    """True if a member of the present world is heard, and has the steps if there are any.

    The next life of a member is none, and who has yet to restore may find that it begins anew.
    """
    lives = {(m.worker, m.incarnation) for m in status.world.members} if status.world else set()
    heard = [w.pulse for w in status.members if w.pulse is not None and (w.worker, w.incarnation) in lives]
    return any(pulse.committed > 0 or not status.committed for pulse in heard)


def live_line(status: Status, *, moves: bool = True) -> str:
    """One line: where the run is.

    Args:
        status: of the job.
        moves: somebody of the world is known to take part; False: as far as is known nobody has begun yet, the world
            may be that of a launcher before this one.
    """
    world = status.world
    if world is None:
        ready = sum(w.state in {"ready", "active"} for w in status.workers.values())
        there = sum(w.state not in GONE for w in status.workers.values())
        return f"{status.state}: {workers(there)}, {ready} ready" if there else status.state
    starting = world.status == "running" or any(w.state == "starting" for w in status.workers.values())
    if starting and not moves and status.finished is None:
        return _starting(status)
    if not world.members and not status.committed:
        return f"waiting for {world.awaiting or 'workers'}{_advice(status)}"
    ahead = max((w.pulse for w in status.members if w.pulse), key=lambda p: p.committed, default=None)
    committed = max(status.committed, ahead.committed if ahead else 0)
    parts = [f"step {committed}/{status.steps}" if status.steps else f"step {committed}"]
    if ahead is not None and status.terms is not None and status.terms.epochs > 1 and status.steps_an_epoch:
        epoch = committed // status.steps_an_epoch + 1
        parts.append(f"epoch {min(epoch, status.terms.epochs)}/{status.terms.epochs}")
    loss = ahead.loss if ahead is not None and ahead.loss is not None else status.loss
    if loss is not None:
        parts.append(f"loss {loss:.4g}")
    if ahead is not None and ahead.rate > 0:
        parts.append(f"{ahead.rate:,.0f} samples/s")
    learning = sum(w.state == "learning" for w in status.workers.values())
    parts.append(headcount(world.members, status.slots) + (f", {learning} learning" if learning else ""))
    parts.append(f"generation {world.generation}")
    if status.state not in {"running", "starting"}:
        why = f"waiting for {world.awaiting}{_advice(status)}" if status.state == "paused" else status.trouble
        parts.append(f"{status.state}: {why}" if why and status.state in {"paused", "degraded"} else status.state)
    return "  ".join(parts)


def _coming(status: Status) -> list[Worker]:
    """Workers that have come and are in no ring yet."""
    return [w for w in status.workers.values() if w.state in {"starting", "ready", "learning"}]


def _advice(status: Status) -> str:
    """How to get a worker, where none is on its way."""
    return "" if _coming(status) or not status.workers else f" ({TO_GET_ONE})"


def _starting(status: Status) -> str:
    """Nobody of the world is heard: who comes, and what is there to go on from."""
    new = _coming(status)
    ready = sum(w.state != "starting" for w in new)
    came = f": {workers(len(new))}, {ready} ready" if new else ""
    before = f"; {status.committed} of {status.steps} steps were committed before" if status.committed else ""
    return f"starting{came}{before}"


def missing(status: Status) -> str:
    """What a paused run waits for; empty if it does not."""
    world = status.world
    paused = status.finished is None and world is not None and world.status == "paused"
    return world.awaiting if paused and world is not None else ""


def mark(status: Status, *, moves: bool = True) -> tuple[object, ...]:
    """What must differ for another progress line to be worth it where there is no live line."""
    steps = max((w.pulse.committed for w in status.members if w.pulse), default=0)
    known = sum(w.state != "starting" for w in status.workers.values())
    started = (len(status.workers), known) if not status.members or not moves else ()
    generation = status.world.generation if status.world else 0
    return status.state, generation, max(steps, status.committed), started, moves


def line_of(  # noqa: PLR0911  (one a kind)
    event: AnyEvent, *, slots: int = 0, awaited: bool = True, committed: int = 0
) -> tuple[str, Colour] | None:
    """The line that an event is worth, and its colour; None: none.

    Args:
        event: any.
        slots: of a step, 0: not known.
        committed: steps before the event.
        awaited: say what a paused world waits for; False: that was said a moment ago.
    """
    match event:
        case WorldChanged():
            return _world(event, slots, awaited=awaited)
        case CheckpointCommitted():
            return f"checkpoint of step {event.step} written: {event.path}", ""
        case CheckpointFailed():
            return f"checkpoint failed: {event.reason}", "yellow"
        case CheckpointRestored():
            return _restored(event, committed)
        case JobScaled():
            return f"scaled to {workers(event.workers)}", ""
        case Alert() if event.severity != "info" and event.alert not in _TOLD_ELSEWHERE:
            return _alert(event)
    return None


def _alert(alert: Alert) -> tuple[str, Colour]:
    if alert.state == "cleared":
        return f"over: {alert.alert} ({alert.subject})", ""
    hint = f" ({alert.suggestion})" if alert.suggestion else ""
    return f"{alert.severity}: {alert.alert}: {alert.reason}{hint}", "red" if alert.severity == "critical" else "yellow"


def _world(world: WorldChanged, slots: int, *, awaited: bool) -> tuple[str, Colour] | None:
    head = f"world {world.generation}: {headcount(world.members, slots)}"
    if world.status == "paused" and not world.members and not world.removed:
        return (f"world {world.generation}: waiting for {world.awaiting or 'workers'}", "") if awaited else None
    if world.status == "paused":
        waits = f"; waiting for {world.awaiting}" if awaited and world.awaiting else ""
        crew = f"{head}, " if world.members else f"world {world.generation}: "
        return f"{crew}paused: {world.reason}{waits}", "yellow"
    if world.status == "finished":
        return None  # the summary tells it
    return f"{head}: {world.reason}", "yellow" if world.removed else "cyan"


def _restored(event: CheckpointRestored, committed: int) -> tuple[str, Colour] | None:
    skipped = "".join(f"; skipped {reason}" for reason in event.skipped)
    if event.checkpoint:
        of = "" if (run := run_of(event.checkpoint)) in ("", event.run) else f", of run {run}"
        return (
            f"restored from checkpoint {event.checkpoint} (step {event.step}{of}){skipped}",
            "yellow" if skipped else "cyan",
        )
    if not skipped and not committed:
        return None
    what = "could be used" if skipped else "was written"
    lost = f", without the {committed} steps of before" if committed else ""
    return f"no checkpoint {what}, beginning at step 0{lost}{skipped}", "yellow"
