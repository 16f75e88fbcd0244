"""Who holds current state: only such a worker may be given slots.

At a run's first world nobody has state, or all of it was lost: then every member is current, since all receive the
donor's state before they step. From then on a newcomer is a learner until it says `worker.caught_up` in its present
incarnation. A restarted worker is a newcomer: what counts is (worker, incarnation), never the name alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from reknit.core.events import Member

Key = tuple[str, int]
"""(worker, incarnation)."""


def key_of(member: Member) -> Key:
    """Return the key of a member."""
    return member.worker, member.incarnation


def current_in(members: Iterable[Member], before: frozenset[Key]) -> frozenset[Key]:
    """Return who is current in a new world, given who was in the world before it."""
    keys = frozenset(key_of(member) for member in members)
    return keys & before or keys


def with_caught_up(members: Iterable[Member], current: frozenset[Key], key: Key) -> frozenset[Key]:
    """Return who is current after `key` said that it has caught up; one that is in no world stays out."""
    return current | {key} if key in {key_of(member) for member in members} else current
