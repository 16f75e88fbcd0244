"""A node in quarantine starts no workers while others train: they would not be let in. Pure.

Workers that live go on. Where nobody trains (no world yet, or a paused one) workers are started all the same: the run
may not go on without this node, and then membership lets it in.
"""

from __future__ import annotations

from dataclasses import replace

from reknit.core.events import NodeHeld

from .actions import Decision, Say
from .state import State


def held(state: State, event: NodeHeld, ahead: float, now: float) -> Decision:
    """Take in that membership keeps a node out.

    Args:
        state: ours.
        event: what it said; a node that only comes and goes (`flapping`) has healthy workers, which learn meanwhile.
        ahead: what the broker's clock shows less our monotonic one, seconds.
        now: monotonic seconds.
    """
    if event.node != state.node or event.run != state.run or event.cause != "failing":
        return Decision(state)
    # no longer than it lasts in all: somebody may have set the broker's clock back
    left = min(event.until - ahead - now, event.seconds)
    if left <= 0.0:
        return Decision(state)
    said = Say(f"{state.node} is kept out for {left:.0f} s ({event.reason}): no worker is started here meanwhile")
    return Decision(replace(state, held_until=now + left, held_why=event.reason), (said,))


def released(state: State, now: float) -> Decision:
    """The quarantine is over."""
    if state.held_until == 0.0 or now < state.held_until:
        return Decision(state)
    said = Say(f"{state.node} is not kept out any more: workers are started again")
    return Decision(replace(state, held_until=0.0, held_why=""), (said,))


def forbids(state: State) -> bool:
    """True if a worker that were started now would not be let in."""
    return state.held_until > 0.0 and state.training
