"""Who is given slots in a world, in ring order, and in words why others are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from reknit.core.events import Member, WorldChanged

from .currency import Key, key_of


@dataclasses.dataclass(frozen=True, slots=True)
class Eligible:
    """The outcome.

    Attributes:
        workers: who may hold slots, in ring order; empty only for a world without members.
        forced: True if nobody qualified and the best there is was taken.
        notes: why others have no slots, in words.
    """

    workers: tuple[str, ...]
    forced: bool = False
    notes: tuple[str, ...] = ()


def eligible_in(world: WorldChanged, current: frozenset[Key], leaving: frozenset[Key]) -> Eligible:
    """Choose the members that may hold slots: active, current, not leaving.

    A plan is never empty: if nobody qualifies, spares that hold state are taken, then those that leave (they compute
    until they are out), then learners.
    """

    def going(member: Member) -> bool:
        return key_of(member) in leaving or member.worker in world.leaving

    holders = [m for m in world.members if key_of(m) in current]
    staying = [m for m in holders if not going(m)]
    active = [m for m in staying if m.role == "active"]
    choice = next((group for group in (active, staying, holders, list(world.members)) if group), [])
    workers = tuple(m.worker for m in choice)
    chosen = frozenset(workers)
    left_out = [m for m in world.members if m.worker not in chosen]
    gone = frozenset(key_of(m) for m in left_out if going(m))
    return Eligible(workers, forced=not active, notes=_notes(left_out, current, gone))


def _notes(left_out: Sequence[Member], current: frozenset[Key], going: frozenset[Key]) -> tuple[str, ...]:
    reasons = {
        "learning": [m.worker for m in left_out if key_of(m) not in current],
        "leaving": [m.worker for m in left_out if key_of(m) in going & current],
        "spare": [m.worker for m in left_out if m.role == "spare" and key_of(m) in current - going],
    }
    return tuple(
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}" for what, names in reasons.items() if names
    )
