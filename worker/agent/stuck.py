"""A process that exists but does not run: stopped (SIGSTOP, a debugger) or blocked in the kernel. Seen at 4 Hz."""

from __future__ import annotations

from dataclasses import dataclass

STUCK_AFTER = 0.5
"""Seconds in one of the states below until it is said."""
MEANING = {"T": "stopped", "t": "traced", "D": "uninterruptible"}


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a process.

    Attributes:
        letter: the kernel's state letter of the main thread.
        switches: context switches of the main thread so far; they grow when it ran in between.
    """

    letter: str
    switches: int = 0


@dataclass(frozen=True, slots=True)
class Stillness:
    """Since when a process stands still.

    Attributes:
        look: the last look.
        since: when this stillness was first seen, None if it runs.
        said: whether it was reported.
    """

    look: Look | None = None
    since: float | None = None
    said: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """What to publish: state in words and for how long."""

    state: str
    seconds: float


def follow(before: Stillness, look: Look, now: float) -> tuple[Stillness, Notice | None]:
    """Take one more look into account; a notice when it has just become stuck, and when it goes on."""
    if not _still(before.look, look):
        # a first look at D says nothing yet: it counts only if the next one finds that it did not run in between
        fresh = Stillness(look, now if look.letter in MEANING else None)
        if before.said and before.since is not None:
            return fresh, Notice("R running", now - before.since)
        return fresh, None
    since = now if before.since is None else before.since
    if not before.said and now - since > STUCK_AFTER:
        return Stillness(look, since, True), Notice(f"{look.letter} {MEANING[look.letter]}", now - since)
    return Stillness(look, since, before.said), None


def _still(before: Look | None, look: Look) -> bool:
    """True if the process did not run between two looks: both in such a state, and not in and out of it meanwhile."""
    if before is None or look.letter not in MEANING or before.letter not in MEANING:
        return False
    return look.letter != "D" or look.switches == before.switches
