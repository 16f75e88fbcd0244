"""The agent's one reducer: `decide(state, input) -> Decision(state, actions)`, no clock, no I/O."""

from __future__ import annotations

import signal
from dataclasses import replace

from reknit.core.events import (
    AgentJoined,
    AnyEvent,
    DrainAsked,
    JobFinished,
    JobScaled,
    JobStopAsked,
    JobSubmitted,
    NodeHeld,
    TargetsSet,
    WorkerFailed,
    WorkerFinished,
    WorkerLeaving,
    WorkerRefused,
    WorkerRegistered,
    WorkerStarted,
    WorkerStuck,
    WorldChanged,
)

from . import ending, exits, quarantine, world
from .actions import Action, Decision, Fork, Post, Say
from .inputs import Began, Dying, Exited, Forked, ForkFailed, Heard, Input, Signalled, Ticked
from .state import Place, State
from .stuck import follow


def decide(state: State, told: Input) -> Decision:
    """Take one input into account."""
    if state.mode == "ended":
        return Decision(state)
    decision = _dispatch(state, told)
    for rule in (quarantine.released, _fork_due, ending.over):
        if decision.state.mode != "ended":
            decision = rule(decision.state, told.now).onto(decision.do)
    return decision


def _dispatch(state: State, told: Input) -> Decision:
    match told:
        case Dying():
            decision = exits.on_dying(state, told)
        case Exited():
            decision = exits.on_exit(state, told)
        case Heard():
            decision = _heard(state, told)
        case Ticked():
            decision = _ticked(state, told)
        case Forked():
            decision = _forked(state, told)
        case ForkFailed():
            decision = exits.on_fork_failed(state, told)
        case Signalled():
            decision = _signalled(state, told)
        case Began():
            decision = Decision(replace(state, mode="running") if state.mode == "starting" else state)
    return decision


def _heard(state: State, told: Heard) -> Decision:  # noqa: PLR0911 - a table
    match told.event:
        case JobSubmitted(run=run):
            return Decision(replace(state, begun=state.begun or run == state.run))
        case JobFinished(run=state.run) as event if state.mode != "failing":
            return ending.finish(state, event, told.now)
        case WorldChanged() | TargetsSet() as event:
            return world.decided(state, event, told.now)
        case NodeHeld() as event:
            return quarantine.held(state, event, told.ahead, told.now)
        case JobStopAsked(reason=reason, at_once=at_once) if state.begun or told.seq > state.joined:
            return _stop(state, reason, at_once, told.now)
        case event if told.seq > state.joined:
            return _heard_since_joining(state, event, told.now)
    return Decision(state)


def _heard_since_joining(state: State, event: AnyEvent, now: float) -> Decision:  # noqa: PLR0911 - a table
    match event:
        case DrainAsked(target=target, reason=reason):
            return _drain(state, target, reason, now)
        case JobScaled():
            # what follows counts also if it is the number that was told before: who was drained since is replaced
            return Decision(replace(state, target=world.UNTOLD))
        case WorkerRegistered():
            return world.on_registered(state, event)
        case WorkerRefused():
            return world.on_refused(state, event, now)
        case WorkerFailed() | WorkerFinished() | WorkerLeaving():
            return _of_worker(state, event)
        case AgentJoined(node=state.node, run=state.run, host=host, pid=pid) if (host, pid) != (state.host, state.pid):
            why = f"another agent (pid {pid} on {host}) has taken the name {state.node}"
            return ending.leave_at_once(replace(state, root=why), now, why, 1)
    return Decision(state)


def _of_worker(state: State, event: WorkerFailed | WorkerFinished | WorkerLeaving) -> Decision:
    place = state.place(event.worker)
    if place is None or event.incarnation < place.incarnation:
        return Decision(state)
    match event:
        case WorkerFailed(error=error, step=step):
            place = replace(place, error=error, step=max(place.step, step))
        case WorkerFinished(step=step):
            place = replace(place, finished=True, step=max(place.step, step))
        case WorkerLeaving():
            place = replace(place, leaving=True)
    return Decision(state.with_place(place))


def _stop(state: State, reason: str, at_once: bool, now: float) -> Decision:
    why = "the run is stopped" + (f": {reason}" if reason else "")
    if at_once:
        return ending.leave_at_once(state, now, why, state.code)
    return Decision(state) if state.mode in {"draining", "failing"} else ending.leave(state, now, why)


def _drain(state: State, target: str, reason: str, now: float) -> Decision:
    why = "drained" + (f": {reason}" if reason else "")
    if target == state.node:
        return Decision(state) if state.mode in {"draining", "failing"} else ending.leave(state, now, why)
    place = state.place(target)
    if place is None:
        return Decision(state)
    place = replace(place, wanted=False)
    return ending.ask(state.with_place(place), place, now, state.grace, why).onto((Say(f"{target} leaves: {why}"),))


def _signalled(state: State, told: Signalled) -> Decision:
    state = replace(state, signals=state.signals + 1)
    name = signal.Signals(told.number).name
    if state.signals > 1:
        return ending.leave_at_once(state, told.now, f"{name} a second time", 128 + told.number)
    return Decision(state) if state.mode in {"draining", "failing"} else ending.leave(state, told.now, name)


def _forked(state: State, told: Forked) -> Decision:
    place = state.place(told.worker)
    if place is None:
        return Decision(state)
    asked = place.why
    place = replace(
        place,
        phase="alive",
        incarnation=told.incarnation,
        pid=told.pid,
        forked_at=told.now,
        attempt=place.attempt + 1,
        error="",
        why="",
        result="",
    )
    started = WorkerStarted(
        worker=place.worker,
        incarnation=place.incarnation,
        node=state.node,
        pid=place.pid,
        attempt=place.attempt - 1,
    )
    first: tuple[Action, ...] = (Post(started, f"started/{place.worker}/{place.incarnation}"),)
    state = state.with_place(place)
    if state.hurry:
        return ending.kill(state, place, told.now, state.why).onto(first)
    if state.mode != "running" or not place.wanted:
        return ending.ask(state, place, told.now, state.grace, asked or state.why).onto(first)
    return Decision(state, first)


def _ticked(state: State, told: Ticked) -> Decision:
    decision = Decision(state)
    for place in state.places:
        look = told.looks.get(place.worker)
        if look is None or not place.living:
            continue
        stillness, notice = follow(place.stillness, look, told.now)
        decision = Decision(decision.state.with_place(replace(place, stillness=stillness)), decision.do)
        if notice is not None:
            decision = decision.then(*_stuck(state.node, place, notice.state, notice.seconds, told.now))
    for rule in (world.not_back, ending.overdue):
        decision = rule(decision.state, told.now).onto(decision.do)
    return decision


def _stuck(node: str, place: Place, state: str, seconds: float, now: float) -> tuple[Action, ...]:
    event = WorkerStuck(worker=place.worker, incarnation=place.incarnation, node=node, state=state, seconds=seconds)
    ident = f"stuck/{place.worker}/{place.incarnation}/{state[0]}/{int(now * 1000)}"
    return Post(event, ident), Say(f"{place.worker} (pid {place.pid}): {state}, {seconds:.1f} s")


def _fork_due(state: State, now: float) -> Decision:
    if state.mode != "running" or quarantine.forbids(state):
        return Decision(state)
    decision = Decision(state)
    for place in state.places:
        if place.phase == "waiting" and place.due <= now:
            forking = replace(place, phase="forking", again=False, why="", stillness=type(place.stillness)())
            fork = Fork(place.worker, place.attempt, place.incarnation, behind=state.training)
            decision = Decision(decision.state.with_place(forking), (*decision.do, fork))
    return decision
