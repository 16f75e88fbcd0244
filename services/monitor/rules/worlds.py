"""The world: who was lost, who joins and when that fails, changes that are not mended, too few workers."""

from __future__ import annotations

from collections.abc import Iterable

from reknit.core.headcount import TO_GET_ONE
from reknit.core.status import learning_in_words
from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

MEND_SECONDS = 10.0
MEND_STEPS = 3.0
"""A mended ring has committed a step after this many usual step times, and after MEND_SECONDS at the latest."""
LEARN_SECONDS = 120.0
"""Seconds that a newcomer may take to receive the state and catch up."""


def lost(view: View, _now: float) -> Iterable[Finding]:
    """A worker was taken out of the world that was not to go, and is not back."""
    for worker, reason in view.status.lost.items():
        yield Finding("worker-lost", worker, "info", reason, "reknit events --area worker shows how it ended")


def split(view: View, _now: float) -> Iterable[Finding]:
    """A worker lives and was put out, because the others cannot link with it; it is not back."""
    for worker in view.status.apart:
        known = view.status.workers.get(worker)
        where = f"{worker} on {known.node}" if known is not None else worker
        reason = f"{where} lives, and no ring with it can be linked: {view.status.lost[worker]}"
        hint = "look at the network between its host and those of the others; it comes back by itself"
        yield Finding("ring-split", worker, "warning", reason, hint)


def joined(view: View, _now: float) -> Iterable[Finding]:
    """A worker has come and is still receiving state, beside the ring or in it."""
    if view.status.finished is not None:
        return
    for name, worker in view.status.workers.items():
        if worker.state == "learning":
            yield Finding("worker-joined", name, "info", f"{name} joined and is receiving state")


def behind(view: View, _now: float) -> Iterable[Finding]:
    """A worker that learns does not catch up: until then it takes no part, and nobody waits for it."""
    if view.status.finished is not None:
        return
    for name, worker in view.status.workers.items():
        if worker.state == "learning":
            where = learning_in_words(worker, view.status.committed)
            reason = f"{name} on {worker.node} has not caught up within {LEARN_SECONDS:.0f} s: {where}"
            hint = "see its log; it must receive the state and apply results faster than the ring makes them"
            yield Finding("not-caught-up", name, "warning", reason, hint, hold=LEARN_SECONDS)


def changed(view: View, _now: float) -> Iterable[Finding]:
    """The world changed and no step is committed in it yet; who came or was lost is an alert of its own."""
    if not_mended(view):
        world = view.status.world
        assert world is not None
        if not world.added and view.status.lost.keys().isdisjoint(world.removed):
            yield Finding("world-changed", view.job, "info", f"generation {world.generation}: {world.reason}")


def unmended(view: View, _now: float) -> Iterable[Finding]:
    """The world changed and for long no step has been committed in it."""
    if not_mended(view):
        world = view.status.world
        assert world is not None
        usual = max((p.step_seconds for w in view.status.members if (p := w.pulse) is not None), default=0.0)
        hold = max(MEND_SECONDS, MEND_STEPS * usual)
        reason = f"no step was committed in generation {world.generation} for {hold:.0f} s ({world.reason})"
        yield Finding("not-mended", view.job, "warning", reason, "reknit status shows what each worker does", hold)


def paused(view: View, _now: float) -> Iterable[Finding]:
    """Too few workers: the job waits and keeps its state."""
    world = view.status.world
    if world is not None and world.status == "paused" and view.status.finished is None:
        reason = f"paused: waiting for {world.awaiting}" if world.awaiting else f"paused: {world.reason}"
        yield Finding("job-below-min", view.job, "critical", reason, TO_GET_ONE)


def held(view: View, now: float) -> Iterable[Finding]:
    """New workers of a node are kept out for a while: it comes and goes, or its workers fail again and again."""
    if view.status.finished is not None:
        return
    for name, node in view.status.nodes.items():
        kept = [told for told in node.held.values() if told.until > now + view.ahead]
        if node.up and kept:
            longest = max(kept, key=lambda told: told.until)
            hint = "reknit nodes shows until when; look at the machine and at the logs of its workers"
            yield Finding("node-held", name, "warning", f"{name}: {longest.reason}", hint)


def not_mended(view: View) -> bool:
    """Return True from a change of a running world until the first step is committed in it."""
    status = view.status
    world = status.world
    if world is None or world.status != "running" or status.finished is not None or status.moved is None:
        return False
    return len(status.worlds) > 1 and status.committed_in < world.generation


RULES = (
    Rule(("worker-lost",), lost),
    Rule(("ring-split",), split),
    Rule(("worker-joined",), joined),
    Rule(("not-caught-up",), behind),
    Rule(("world-changed",), changed),
    Rule(("not-mended",), unmended),
    Rule(("job-below-min",), paused),
    Rule(("node-held",), held),
)
