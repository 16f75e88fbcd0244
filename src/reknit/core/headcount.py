"""How many workers a world has, in words: those that compute and those that stand by, never added up. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from reknit.core.events import Member

TO_GET_ONE = "`reknit scale N` starts workers where an agent is up; else start a node with its `reknit run` command"
"""What to do where a job waits for a worker."""


def spares_of(members: Sequence[Member], slots: int) -> int:
    """How many stand by: those that are spares, and those for whom a step has no slot.

    Args:
        members: of a world.
        slots: of a step, 0: not known.
    """
    spares = sum(member.role == "spare" for member in members)
    return max(spares, len(members) - slots) if slots else spares


def headcount(members: Sequence[Member], slots: int) -> str:
    """Say it: `1 worker`, `2 workers and 1 spare`.

    Args:
        members: of a world.
        slots: of a step, 0: not known.
    """
    spares = spares_of(members, slots)
    active = workers(len(members) - spares)
    return f"{active} and {spares_in_words(spares)}" if spares else active


def workers(count: int) -> str:
    """A number of workers in words."""
    return f"{count} worker" + ("" if count == 1 else "s")


def spares_in_words(count: int) -> str:
    """A number of spares in words."""
    return f"{count} spare" + ("" if count == 1 else "s")
