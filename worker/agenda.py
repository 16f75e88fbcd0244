"""What the main thread is to do next, of what it shares with the engine; with the exchange's condition held.

In this order: end, come back, restore, load; copy for learners; take the digest of the weights; apply the step's
result, or compute a slot of it; else nothing, until something changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ring.vote import Diverged, Wrong
from .work import Apply, Begin, ComeBack, Compute, Copy, Done, Leave, Load, Rehearse, Restore, Result, Verify, Work

if TYPE_CHECKING:
    from .exchange import Exchange


def next_work(shared: Exchange) -> Work | None:
    """Return what there is to do, None if the main thread has to wait.

    Raises:
        Diverged: a sole worker committed a step with other weights: nobody can know which are right.
        Exception: what ended the engine, if it ended.
    """
    if shared.error is not None:
        raise shared.error
    if shared.left_out and not shared.left:
        return ComeBack()
    if shared.restore_wanted:
        return Restore()
    if shared.load is not None:
        return Load(shared.load)
    if shared.main_step is None or shared.learning:
        return _before_begin(shared)
    return _with_state(shared, shared.main_step)


def _before_begin(shared: Exchange) -> Work | None:
    if shared.left:
        return Leave(shared.left)
    if shared.learning:
        return None
    # not `shared.step`: the engine may be ahead already, of a main thread that has yet to apply its results
    return Begin(shared.ready_at) if shared.current else None


def _with_state(shared: Exchange, step: int) -> Work | None:
    if shared.copies.due(step):
        return Copy(step)
    ready = shared.results.get(step)
    if _unverified(shared, step, ready):
        return Verify(step)
    if ready is None:
        return _in_step(shared)
    agreed = ready.of.settled.weights
    if shared.weights.compare(step, agreed):
        rehearses = shared.weights.verify and shared.rehearsal.wanted(ready.of)
        return Rehearse(step, shared.rehearsal.slot) if rehearses else Apply(step, ready)
    why = f"diverged: step {step} was computed with weights {agreed:016x}, here they are {shared.weights.digest:016x}"
    if _compared(shared, ready):
        shared.stray(why, Wrong(shared.worker, "weights", shared.weights.digest, agreed, "majority"))
        return None
    # a sole worker computed it: it or we are wrong, and what it did is committed
    shared.on_doubt(step, why)
    raise Diverged(why, hint="nothing tells which of two is right: the run goes back to its last checkpoint")


def _compared(shared: Exchange, result: Result) -> bool:
    """True if more than one worker computed the step: then they have compared their weights."""
    used = shared.used(result.of.step)
    return sum(r.first < min(r.end, used) for r in result.of.owners) > 1


def _unverified(shared: Exchange, step: int, ready: Result | None) -> bool:
    """True if it is time to take the digest of the weights."""
    held = shared.weights
    if not held.verify or held.step == step:
        return False
    if ready is not None:
        return ready.of.settled.weights != 0
    return step == shared.step and (held.asked or _free_slot(shared) is None)


def _in_step(shared: Exchange) -> Work | None:
    if shared.left:
        return Leave(shared.left)
    if shared.main_step == shared.total and shared.finished:
        return Done()
    if shared.main_step != shared.step or shared.step >= shared.total or shared.weights.asked:
        return None
    slot = _free_slot(shared)
    return None if slot is None else Compute(shared.step, slot, slot in shared.orphans)


def _free_slot(shared: Exchange) -> int | None:
    if shared.step >= shared.total:
        return None
    free = (s for s in shared.own_slots() if s not in shared.computed and s not in shared.computing)
    return next(free, None)
