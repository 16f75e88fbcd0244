"""Who holds current state: only such a worker may be given slots.

At a run's first world nobody has state, or all of it was lost: then every member is current, since all receive the
donor's state before they step. From then on a newcomer is a learner until it says `worker.caught_up` in its present
incarnation: before it enters a world, if it learned beside the ring, so that it has slots from its first step there; or
as a member. A restarted worker is a newcomer: what counts is (worker, incarnation), never the name alone.
"""

from __future__ import annotations

from reknit.core.events import Member

Key = tuple[str, int]
"""(worker, incarnation)."""


def key_of(member: Member) -> Key:
    """Return the key of a member."""
    return member.worker, member.incarnation


def current_in(members: frozenset[Key], caught_up: frozenset[Key]) -> frozenset[Key]:
    """Return who of a new world's members is current, given who has the state inside and outside the world before."""
    return members & caught_up or members
