"""A worker process ends or has ended: what is published, and what comes in its place. Pure."""

from __future__ import annotations

from dataclasses import replace

from reknit.core.events import WorkerDying, WorkerExited

from .actions import Action, Decision, Post, Say
from .exit_status import in_words, signal_name
from .inputs import Dying, Exited, ForkFailed
from .restart import after_exit
from .state import Place, State


def on_dying(state: State, told: Dying) -> Decision:
    """Publish that a worker of the ring ends; how, and what follows, is known when it is reaped."""
    place = state.place(told.worker)
    if place is None or place.phase not in {"alive", "ending", "killed"} or place.pid != told.pid:
        return Decision(state)
    if _is_done(place) or state.mode in {"finishing", "failing"}:
        return Decision(state)
    expected = _expected(state, place)
    others = {
        other.worker: other.pid
        for other in state.places
        if other.worker in told.others and other.living and _expected(state, other) == expected and not _is_done(other)
    }
    dying = WorkerDying(
        worker=place.worker,
        incarnation=place.incarnation,
        node=state.node,
        pid=told.pid,
        expected=expected,
        others=others,
    )
    return Decision(state, (Post(dying, f"dying/{place.worker}/{place.incarnation}"),))


def _is_done(place: Place) -> bool:
    """True if the ring goes on without it already, or is at its end."""
    return bool(place.finished or place.error)


def on_exit(state: State, told: Exited) -> Decision:
    """Publish the exit first, then decide what follows."""
    place = state.place(told.worker)
    if place is None or not place.living or place.pid != told.pid:
        return Decision(state)
    if told.code != 0:
        place = replace(place, tail=told.stderr_tail, log=told.log)
    expected = _expected(state, place) or (told.code == 0 and not place.registered)
    exited = WorkerExited(
        worker=place.worker,
        incarnation=place.incarnation,
        node=state.node,
        pid=told.pid,
        code=told.code,
        signal=signal_name(told.code),
        out_of_memory=told.out_of_memory,
        stderr_tail=told.stderr_tail,
        seconds_alive=told.now - place.forked_at,
        last_step=max(place.step, told.step),
        expected=expected,
        log=told.log,
    )
    first: tuple[Action, ...] = (Post(exited, f"exited/{place.worker}/{place.incarnation}"),)
    return _next(state, place, told, expected).onto(first)


def on_fork_failed(state: State, told: ForkFailed) -> Decision:
    """No process could be made: tried again as after a death by signal."""
    place = state.place(told.worker)
    if place is None or place.phase != "forking":
        return Decision(state)
    said = Say(f"{place.worker} could not be started: {told.error}")
    if state.mode != "running" or not place.wanted:
        return Decision(state.with_place(replace(place, phase="empty")), (said,))
    after = after_exit(
        -1, registered=False, ever_registered=place.ever_registered, failures=place.failures, seconds_alive=0.0
    )
    if after.verdict == "given_up":
        root = state.root or f"{place.worker} could not be started: {told.error}"
        place = replace(place, phase="empty", result="failed", failures=after.failures)
        return Decision(
            replace(state.with_place(place), root=root), (said, Say(f"{place.worker} is given up: {after.reason}"))
        )
    # never at once: whatever forbids a fork is still there
    place = replace(place, phase="waiting", due=told.now + max(0.5, after.pause), failures=after.failures)
    return Decision(state.with_place(place), (said,))


def _expected(state: State, place: Place) -> bool:
    """True after a finish, drain or stop; a script that never joined may also just come to its end."""
    asked = bool(place.why) and not place.again
    over = state.mode in {"draining", "finishing", "failing"}
    return asked or over or place.finished or place.leaving


def _next(state: State, place: Place, told: Exited, expected: bool) -> Decision:
    words = in_words(told.code, out_of_memory=told.out_of_memory, machine_short=told.machine_short)
    alive = f"(alive for {told.now - place.forked_at:.1f} s)"
    bad = told.code != 0 and not place.why and not place.leaving
    root = (
        f"{place.worker} {words} {alive}"
        + (f": {place.error}" if place.error else "")
        + (f", see {told.log}" if told.log else "")
    )
    if place.again and state.mode == "running" and place.wanted:
        killed_by = f"{place.worker} was ended by its agent ({place.why})"
        return _again(state, place, told, killed_by)
    if state.mode != "running" or not place.wanted or place.refused or expected:
        empty = replace(place, phase="empty", result="failed" if bad or place.refused else "ok", registered=False)
        if place.leaving:
            empty = replace(empty, wanted=False)
        decision = Decision(state.with_place(empty))
        if bad and state.mode != "failing":
            decision = Decision(
                replace(decision.state, root=decision.state.root or root, code=1),
                (*decision.do, Say(f"{place.worker} {words} {alive} after its last step")),
            )
        return decision
    return _again(state, place, told, f"{place.worker} {words} {alive}" + (f": {place.error}" if place.error else ""))


def _again(state: State, place: Place, told: Exited, what: str) -> Decision:
    # a worker that its agent killed was a failure even if it managed to exit with 0
    code = -9 if place.again else told.code
    after = after_exit(
        code,
        registered=place.registered,
        ever_registered=place.ever_registered,
        failures=place.failures,
        seconds_alive=told.now - place.forked_at,
    )
    said = Say(f"{what}; {after.reason}")
    if after.verdict == "again":
        place = replace(place, phase="waiting", due=told.now + after.pause, failures=after.failures)
        return Decision(state.with_place(_vacant(place)), (said,))
    if after.verdict == "done":
        return Decision(state.with_place(replace(_vacant(place), phase="empty", result="ok", failures=0)), (said,))
    root = state.root or what + (f", see {told.log}" if told.log else "")
    place = replace(_vacant(place), phase="empty", result="failed", failures=after.failures)
    return Decision(replace(state.with_place(place), root=root), (said,))


def _vacant(place: Place) -> Place:
    return replace(
        place, registered=False, member=False, finished=False, leaving=False, evicted_at=None, why="", again=False
    )
