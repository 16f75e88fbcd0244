"""What of a checkpoint is there, what is missing, and who writes what a lost worker owed. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from reknit.core.manifest import INDEX_NUMBER, assign, file_numbers

from .view import Flight

PATIENCE = 60.0
"""Seconds without a new file until a checkpoint is given up."""
PATIENCE_AFTER_END = 15.0
"""The same once the run is finished: its workers only write what they had begun."""


def missing(flight: Flight) -> tuple[int, ...]:
    """Return the numbers of the files that are not there yet; empty before the first one told how many there are."""
    if flight.step < 0:
        return ()
    return tuple(number for number in file_numbers(flight.chunks) if number not in flight.files)


def complete(flight: Flight) -> bool:
    """True when every file is durable."""
    return flight.step >= 0 and not missing(flight)


def covered(flight: Flight, step: int) -> bool:
    """True when the ledger has every step that this state has seen.

    Should all workers be lost, a run goes on from this state: a step that is in its weights and not in the ledger could
    never be proved to have been taken once.

    Args:
        flight: the checkpoint.
        step: committed steps in the ledger.
    """
    return step >= flight.step


def orphans(flight: Flight) -> tuple[int, ...]:
    """Return the numbers of missing files whose writer is gone."""
    return tuple(number for number in missing(flight) if flight.owners.get(number, "") in flight.gone)


def reassign(flight: Flight) -> dict[str, tuple[int, ...]]:
    """Share the orphaned files among those who still hold a copy; empty if nobody does."""
    left = [worker for worker in flight.writers if worker not in flight.gone]
    if not left:
        return {}
    return {worker: numbers for worker, numbers in assign(orphans(flight), left).items() if numbers}


def missing_in_words(flight: Flight) -> str:
    """Return what is missing and who owes it, for people."""
    if flight.step < 0:
        return "no worker has written anything"
    owed: dict[str, list[int]] = {}
    for number in missing(flight):
        owed.setdefault(flight.owners.get(number, "?"), []).append(number)
    return "missing: " + "; ".join(f"{_numbers(numbers)} of {worker}" for worker, numbers in owed.items())


def _numbers(numbers: Iterable[int]) -> str:
    names = ["the index" if number == INDEX_NUMBER else str(number) for number in numbers]
    chunks = [name for name in names if name != "the index"]
    parts = names[: len(names) - len(chunks)]
    if chunks:
        shown = ", ".join(chunks[:4]) + (f" and {len(chunks) - 4} more" if len(chunks) > 4 else "")
        parts.append(f"chunk{'s' * (len(chunks) > 1)} {shown}")
    return " and ".join(parts)
