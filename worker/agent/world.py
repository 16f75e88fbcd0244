"""What the log says of our workers: let in, evicted, refused; and how many of them there shall be. Pure."""

from __future__ import annotations

from dataclasses import replace

from reknit.core.events import TargetsSet, WorkerRefused, WorkerRegistered, WorldChanged
from reknit.core.headcount import workers

from .actions import Decision, Say, Watch
from .ending import ask, kill
from .state import Place, State, place_id

UNTOLD = -1
"""A target that nobody tells: whatever is told next is news."""


def decided(state: State, event: WorldChanged | TargetsSet, now: float) -> Decision:
    """Follow what membership has decided."""
    return on_world(state, event, now) if isinstance(event, WorldChanged) else on_targets(state, event, now)


def on_world(state: State, world: WorldChanged, now: float) -> Decision:
    """Note who of ours is in the new world and who fell out of it."""
    if world.run != state.run:
        return Decision(state)
    decision = Decision(replace(state, training=world.status == "running"))
    here = {(m.worker, m.pid): m.role for m in world.members if m.node == state.node}
    for place in decision.state.places:
        if (place.worker, place.pid) in here:
            spare = here[place.worker, place.pid] == "spare"
            inside = replace(place, member=True, spare=spare, evicted_at=None)
            decision = Decision(decision.state.with_place(inside), decision.do)
        elif place.member and world.status != "finished":
            decision = _fell_out(decision.state, place, world, now).onto(decision.do)
    return decision


def on_targets(state: State, event: TargetsSet, now: float) -> Decision:
    """Start or drain workers to the number that membership names for our node."""
    target = event.targets.get(state.node)
    if event.run != state.run or target is None or target == state.target:
        return Decision(state)
    return _to_target(replace(state, target=target), target, event.spares, now)


def on_registered(state: State, event: WorkerRegistered) -> Decision:
    """A process of ours asks to be let in, for the first time or again."""
    place = state.place(event.worker)
    if place is None or event.node != state.node or event.pid != place.pid or not place.living:
        return Decision(state)
    place = replace(
        place,
        registered=True,
        ever_registered=True,
        member=False,
        evicted_at=None,
        incarnation=max(place.incarnation, event.incarnation),
    )
    return Decision(state.with_place(place), (Watch(place.worker),))


def on_refused(state: State, event: WorkerRefused, now: float) -> Decision:
    """Not let in: said, and if that is final nothing of it is tried again."""
    if event.worker == state.node:
        said = Say(f"{state.node} is refused by the job: {event.reason}")
        if not event.final:
            return Decision(state, (said,))
        state = replace(state, mode="draining", why=f"refused: {event.reason}", code=1, root=said.text)
        decision = Decision(state, (said,))
        for place in state.places:
            decision = ask(decision.state, place, now, state.grace, "refused by the job").onto(decision.do)
        return decision
    refused = state.place(event.worker)
    if refused is None or not refused.living or event.incarnation < refused.incarnation:
        return Decision(state)
    said = Say(f"{event.worker} is refused by the job: {event.reason}")
    if not event.final:
        return Decision(state, (said,))
    # its script is told too and ends with that error; it is not asked, only bounded
    place = replace(refused, refused=event.reason, evicted_at=None)
    if place.phase == "alive":
        place = replace(place, phase="ending", deadline=now + state.grace, why="refused by the job")
    return Decision(replace(state.with_place(place), root=state.root or said.text), (said,))


def not_back(state: State, now: float) -> Decision:
    """Replace evicted workers that had their time to come back."""
    decision = Decision(state)
    for place in state.places:
        if place.phase == "alive" and place.evicted_at is not None and now - place.evicted_at > state.evict_grace:
            why = f"evicted, and not back within {state.evict_grace:g} s"
            decision = kill(decision.state, place, now, why, again=True).onto(decision.do)
    return decision


def _fell_out(state: State, place: Place, world: WorldChanged, now: float) -> Decision:
    place = replace(place, member=False)
    if place.phase != "alive" or place.finished or place.leaving:
        return Decision(state.with_place(place))
    state = state.with_place(replace(place, evicted_at=now))
    if place.error:
        return Decision(state)  # its script has raised: it will not come back, and has that long to end
    said = Say(
        f"{place.worker} is not in world {world.generation} ({world.reason or 'no reason given'}); "
        f"it has {state.evict_grace:g} s to come back"
    )
    return Decision(state, (said,))


def _to_target(state: State, target: int, spares: int, now: float) -> Decision:
    kept = [p for p in state.places if p.wanted]
    decision = Decision(state)
    for place in _to_drop(kept, len(kept) - target, spares):
        unwanted = replace(place, wanted=False)
        asked = ask(decision.state.with_place(unwanted), unwanted, now, state.grace, "fewer workers were asked for")
        decision = asked.onto(decision.do)
    for _ in range(target - len(kept)):
        decision = Decision(_one_more(decision.state, now), decision.do)
    return decision.then(Say(f"{state.node} shall keep {workers(target)}, had {len(kept)}"))


def _to_drop(kept: list[Place], number: int, spares: int) -> list[Place]:
    """Who goes, of equals the last ones first: newcomers, spares that are too many, actives, the other spares."""
    standing_by = [p for p in kept if p.member and p.spare]
    stay = standing_by[:spares]

    def worth(place: Place) -> int:
        if not place.member:
            return 0
        return 3 if place in stay else 1 if place in standing_by else 2

    last_first = kept[::-1]
    return sorted(last_first, key=worth)[: max(0, number)]


def _one_more(state: State, now: float) -> State:
    for place in state.places:
        if place.wanted or place.refused:
            continue
        if place.living:
            # still on its way out: its successor is forked when it is gone
            return state.with_place(replace(place, wanted=True, again=True))
        fresh = Place(place.worker, due=now, attempt=place.attempt, incarnation=place.incarnation)
        return state.with_place(replace(fresh, ever_registered=place.ever_registered))
    new = Place(place_id(state.node, len(state.places)), due=now)
    return replace(state, places=(*state.places, new))
