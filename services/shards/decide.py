"""The reducer: one input and what is known so far give what is known now and what shall be published.

Nothing is remembered of a publication but that it was asked for: the plan that counts is the one that comes back from
the log. So a service that was killed between deciding and publishing decides again at its next input, and of two
services one wins by compare-and-set on the plan log.
"""

from __future__ import annotations

import dataclasses

import xxhash

from reknit.core.decision import Decision, Out, Tick, Told
from reknit.core.events import EpochFinished, Event, NodePulse, Range, ShardsPlanned, WorkerPulse
from reknit.core.plan import split

from . import pace
from .eligibility import Eligible, eligible_in
from .view import View, hear, see

ASK_AGAIN = 2.0
"""Seconds after which a publication that did not come back is asked for again."""


def decide(view: View, told: Told) -> Decision[View]:
    """Take in one input; while the log is replayed nothing is asked for."""
    event = told.event
    if isinstance(event, WorkerPulse):
        return Decision(hear(view, event) if told.live else view)
    if isinstance(event, NodePulse):
        return Decision(view)
    if isinstance(event, Event):
        view = see(view, event, told.seq, told.trace)
    if not told.live or view.over:
        return Decision(view)
    plan, view = _wanted(view, told.now if isinstance(event, Tick) else None)
    wanted = [*_plan_out(view, plan), *_epoch_outs(view)]
    asked = {id_: at for id_, at in view.asked.items() if told.now - at < ASK_AGAIN}
    out = tuple(o for o in wanted if o.id not in asked)
    view = dataclasses.replace(view, asked={**asked, **{o.id: told.now for o in out}})
    return Decision(view, out, "; ".join(_reason(o.event) for o in out))


def _wanted(view: View, tick: float | None) -> tuple[ShardsPlanned | None, View]:
    """Return the plan that should be on the log and is not; `tick`: the time, if speed may be looked at now."""
    world, course = view.world, view.course
    if world is None or world.status != "running" or course is None or not world.members:
        return None, view
    chosen = eligible_in(world, view.current, view.leaving)
    present = view.plan if view.plan is not None and view.plan.generation == world.generation else None
    if present is None:
        ranges = _split(view, course.slots, chosen)
        return _plan(view, 1, ranges, f"generation {world.generation}", chosen), view
    planned = tuple(r.worker for r in present.ranges)
    if chosen.workers != planned and not chosen.forced:
        ranges = _split(view, course.slots, chosen)
        return _plan(view, present.version + 1, ranges, _difference(planned, chosen.workers), chosen), view
    if tick is None or tick - view.pace.checked_at < pace.CHECK_SECONDS:
        return None, view
    return _faster(view, present, chosen, tick)


def _faster(view: View, present: ShardsPlanned, chosen: Eligible, now: float) -> tuple[ShardsPlanned | None, View]:
    """Look at the measured speed; after enough checks that promise enough, return a plan that follows it."""
    seconds = view.seconds
    workers = [r.worker for r in present.ranges]
    better = pace.by_speed(present.slots, workers, [seconds.get(w) for w in workers])
    speed = view.pace.check(pace.gain_of(present.ranges, better, seconds), now)
    if speed.promising < speed.patience:
        return None, dataclasses.replace(view, pace=speed)
    reason = pace.describe(present.ranges, better, seconds)
    view = dataclasses.replace(view, pace=speed.changed())
    return _plan(view, present.version + 1, better, reason, chosen), view


def _split(view: View, slots: int, chosen: Eligible) -> tuple[Range, ...]:
    """Split evenly, or by speed if the plan before was by speed and speed still tells: a straggler stays known."""
    even = split(slots, chosen.workers)
    before = view.plan
    if before is None or before.ranges == split(before.slots, [r.worker for r in before.ranges]):
        return even
    seconds = view.seconds
    better = pace.by_speed(slots, chosen.workers, [seconds.get(w) for w in chosen.workers])
    gain = pace.gain_of(even, better, seconds)
    return better if gain is not None and gain > pace.LEAST_GAIN else even


def _plan(view: View, version: int, ranges: tuple[Range, ...], why: str, chosen: Eligible) -> ShardsPlanned:
    assert view.world is not None
    idle = sum(r.first == r.end for r in ranges)
    slots = ranges[-1].end
    notes = [f"{_workers(len(ranges))}, {slots} slots"]
    if idle:
        none = f"{_workers(idle)} {'has' if idle == 1 else 'have'} no slots"
        notes = [f"{none}: {notes[0]}; {'it is a spare' if idle == 1 else 'they are spares'}"]
    if chosen.forced:
        notes.append("nobody else can take the slots")
    return ShardsPlanned(
        generation=view.world.generation,
        version=version,
        slots=slots,
        ranges=ranges,
        reason="; ".join([why, *notes, *chosen.notes]),
    )


def _difference(planned: tuple[str, ...], chosen: tuple[str, ...]) -> str:
    before, after = set(planned), set(chosen)
    come = [w for w in chosen if w not in before]
    gone = [w for w in planned if w not in after]
    parts = [f"{', '.join(come)} caught up"] * bool(come) + [f"no more slots for {', '.join(gone)}"] * bool(gone)
    return "; ".join(parts) or "another order"


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _plan_out(view: View, plan: ShardsPlanned | None) -> list[Out]:
    if plan is None:
        return []
    digest = xxhash.xxh3_64_hexdigest(repr([(r.worker, r.first, r.end) for r in plan.ranges]).encode())
    id_ = f"plan/{view.job}/{plan.generation}/{plan.version}/{digest}"
    return [Out(plan, id_, expect_last=view.plan_seq, trace=view.world_trace)]


def _epoch_outs(view: View) -> list[Out]:
    course = view.course
    if course is None:
        return []
    return [
        Out(
            EpochFinished(run=view.run, epoch=e, steps=course.steps_an_epoch, samples=course.samples),
            id=f"epoch/{view.job}/{view.run}/{e}",
        )
        for e in view.committed.complete(course)
    ]


def _reason(event: Event) -> str:
    if isinstance(event, ShardsPlanned):
        ranges = ", ".join(f"{r.worker} {r.first}..{r.end - 1}" for r in event.ranges if r.end > r.first)
        return f"plan {event.generation}.{event.version}: {ranges} ({event.reason})"
    assert isinstance(event, EpochFinished)
    return f"epoch {event.epoch} complete: {event.samples} samples in {event.steps} steps"
