"""When a checkpoint is asked for. Pure."""

from __future__ import annotations

import dataclasses

from .view import ALL_LEAVE, JOB_STOPS, View


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """A checkpoint that should be asked for now.

    Attributes:
        at_step: not before this many committed steps.
        reason: why, in words.
    """

    at_step: int
    reason: str


def due(view: View, now: float) -> Due | None:
    """Return what should be asked for, None if nothing.

    Steps: at multiples of the interval, at least half an interval after the one before; asked for half an interval
    ahead, so that the ring can take it at exactly that step; once the step is past, at once. Time: when the interval is
    over and something was committed since. Both count from the newest request, not from the newest success, so that a
    failing disk is tried once an interval.

    Args:
        view: what is known of the job.
        now: own clock, seconds.
    """
    spec = view.spec
    if spec is None or not spec.checkpoint_dir or view.over or view.flight is not None:
        return None
    if not view.members or not (view.running or view.stopping):
        return None
    if view.ending:
        reason = JOB_STOPS if view.stopping else ALL_LEAVE
        return Due(view.reached, reason) if not view.final and view.reached > max(view.saved, 0) else None
    wanted = _by_steps(view, spec.checkpoint_every_steps) or _by_time(view, spec.checkpoint_every_seconds, now)
    course = view.course
    if wanted is not None and course is not None and wanted.at_step >= course.steps:
        return None  # after the last step there is no forward pass in which a copy is taken
    return wanted


def _by_steps(view: View, every: int) -> Due | None:
    if every <= 0:
        return None
    target = -(-(2 * view.mark + every) // (2 * every)) * every
    if view.reached < target - max(1, every // 2):
        return None
    return Due(max(target, view.reached), f"every {every} steps")


def _by_time(view: View, seconds: float, now: float) -> Due | None:
    if seconds <= 0 or now - view.marked_at < seconds or view.reached <= max(view.saved, view.mark):
        return None
    return Due(view.reached, f"every {seconds:g} s")
