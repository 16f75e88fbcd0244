"""How workers and the agent come to their end: asked, then killed, then given up, each in bounded time. Pure."""

from __future__ import annotations

from dataclasses import replace

from reknit.core.events import AgentLeft, JobFinished

from .actions import Action, AskToLeave, Decision, End, Kill, Post, Say
from .state import Place, State

REAP_SECONDS = 5.0
"""After SIGKILL: how long until a process counts as one that the kernel does not let go."""
FAIL_FAST_SECONDS = 5.0
"""At most this long may workers take to leave a run that has failed."""
LINGER_SECONDS = 30.0
"""How long an agent whose workers have finished waits to hear how the run ended."""
GIVE_UP_SECONDS = 5.0
"""The same when its workers have failed and would again."""


def ask(state: State, place: Place, now: float, seconds: float, why: str) -> Decision:
    """Make one worker leave: asked now, killed after `seconds`."""
    match place.phase:
        case "waiting":
            return Decision(state.with_place(replace(place, phase="empty", why=why)))
        case "forking":
            # it is asked as soon as it exists
            return Decision(state.with_place(replace(place, why=why, again=False, deadline=now + seconds)))
        case "alive":
            gone = replace(place, phase="ending", why=why, again=False, leaving=True, deadline=now + seconds)
            return Decision(state.with_place(gone), (AskToLeave(place.worker),))
        case "ending":
            sooner = min(place.deadline, now + seconds)
            return Decision(state.with_place(replace(place, why=why, again=False, deadline=sooner)))
        case _:
            return Decision(state.with_place(replace(place, again=False)))


def kill(state: State, place: Place, now: float, why: str, *, again: bool = False) -> Decision:
    """End one worker at once; with `again` a fresh one takes its place."""
    if place.phase == "waiting":
        return Decision(state.with_place(replace(place, phase="empty", why=why)))
    if place.phase not in {"alive", "ending"}:
        return Decision(state.with_place(replace(place, why=why, again=again)))
    dying = replace(place, phase="killed", why=why, again=again, deadline=now + REAP_SECONDS, evicted_at=None)
    return Decision(state.with_place(dying), (Kill(place.worker),))


def leave(state: State, now: float, why: str) -> Decision:
    """Take the whole node out politely."""
    state = replace(state, mode="draining", why=why)
    return _each(state, now, state.grace, why).onto((Say(f"{state.node} leaves: {why}"),))


def leave_at_once(state: State, now: float, why: str, code: int) -> Decision:
    """Kill all that runs on the node and go."""
    state = replace(state, mode="draining", why=why, code=code, hurry=True)
    decision = Decision(state, (Say(f"{state.node} leaves at once: {why}"),))
    for place in state.places:
        after = kill(decision.state, place, now, why)
        decision = after.onto(decision.do)
    return decision


def finish(state: State, event: JobFinished, now: float) -> Decision:
    """The run is over: after a completed one the scripts may go on to their own end, else the workers are asked."""
    if event.outcome == "completed":
        decision = Decision(replace(state, mode="finishing", why="the run is completed"))
        for place in state.places:
            # one that is in no world would wait for one that never comes
            if not (place.finished or place.member):
                after = ask(decision.state, place, now, state.grace, "the run is completed")
                decision = after.onto(decision.do)
        return decision
    if event.outcome == "stopped":
        if state.mode == "draining":
            return Decision(state)
        state = replace(state, mode="draining", why=event.reason or "the run was stopped")
        return _each(state, now, state.grace, state.why)
    words = _root_words(state, event)
    state = replace(state, mode="failing", code=1, why=f"the run failed: {event.reason}", root=words)
    return _each(state, now, min(state.grace, FAIL_FAST_SECONDS), "the run failed")


def overdue(state: State, now: float) -> Decision:
    """Take the next measure against each process whose time is up."""
    decision = Decision(state)
    for place in state.places:
        if now < place.deadline:
            continue
        if place.phase == "ending":
            seconds = f"pid {place.pid} did not leave in time ({place.why}): killed"
            after = kill(decision.state, place, now, place.why, again=place.again)
            decision = after.then(Say(f"{place.worker} {seconds}")).onto(decision.do)
        elif place.phase == "killed" or (place.phase == "forking" and decision.state.mode != "running"):
            decision = _give_up(decision.state, place, now).onto(decision.do)
    return decision


def over(state: State, now: float) -> Decision:
    """End the agent when nothing is left for it to do."""
    if any(p.busy for p in state.places):
        return Decision(replace(state, linger_until=None) if state.linger_until is not None else state)
    if state.mode in {"draining", "finishing", "failing"}:
        return _end(state)
    kept = [p for p in state.places if p.wanted]
    return _all_done(state, kept, now) if state.mode == "running" and kept else Decision(state)


def _all_done(state: State, kept: list[Place], now: float) -> Decision:
    """No worker runs and none will: leave when the run's end is heard, which may be soon, or without it."""
    if not any(p.ever_registered or p.result == "failed" for p in kept):
        return _end(replace(state, why="its scripts ended"))
    failed = any(p.result == "failed" for p in kept)
    if state.linger_until is None:
        return Decision(replace(state, linger_until=now + (GIVE_UP_SECONDS if failed else LINGER_SECONDS)))
    if now < state.linger_until:
        return Decision(state)
    why = "no worker of the node can go on" if failed else "all workers of the node have finished"
    return _end(replace(state, why=why, code=1 if failed else state.code))


def _each(state: State, now: float, seconds: float, why: str) -> Decision:
    decision = Decision(state)
    for place in state.places:
        decision = ask(decision.state, place, now, seconds, why).onto(decision.do)
    return decision


def _give_up(state: State, place: Place, now: float) -> Decision:
    if place.phase == "forking":
        return Decision(state.with_place(replace(place, phase="empty", result="failed")))
    said: tuple[Action, ...] = (
        Say(f"{place.worker}: PID {place.pid} not reaped: SIGKILL did not end it in {REAP_SECONDS:g} s"),
    )
    state = replace(state, unreaped=(*state.unreaped, place.pid))
    if place.again and state.mode == "running":
        return Decision(state.with_place(replace(place, phase="waiting", due=now, again=False, why="")), said)
    return Decision(state.with_place(replace(place, phase="empty", result="failed")), said)


def _end(state: State) -> Decision:
    left = AgentLeft(node=state.node, reason=state.why, joined=state.joined)
    words = state.root if state.code == 1 else ""
    return Decision(
        replace(state, mode="ended"),
        (Post(left, f"left/{state.node}/{state.joined}"), End(state.code, words)),
    )


def _root_words(state: State, event: JobFinished) -> str:
    """The last words of a failed run: the root first, if it is ours its last line; else what the log says of it."""
    lines = [f"the run failed: {event.reason or 'no reason given'}"]
    place = state.place(event.root_worker) if event.root_worker else None
    if event.root_worker:
        lines.append(f"it began with {event.root_worker}" + (f", see {place.log}" if place and place.log else ""))
    if place and place.tail.strip():
        # the whole of it was shown when it came, and the launcher's summary has it
        lines.append(f"  {place.tail.rstrip().splitlines()[-1].strip()}")
    elif not event.root_worker and state.root:
        lines.append(state.root)
    return "\n".join(lines)
