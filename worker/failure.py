"""What a worker says when the user's script raises: told before its door is shut, so that nobody has to guess."""

from __future__ import annotations

import traceback

from reknit.core.errors import ControlPlaneUnreachable, RefusedByJob, StaleGeneration
from reknit.core.events import WorkerFailed

_NOT_THE_SCRIPT = (RefusedByJob, ControlPlaneUnreachable, StaleGeneration)
"""Errors that say something of the job or the network, not of the user's script."""


def is_the_scripts(error: BaseException) -> bool:
    """True if the error is the script's own; an exit is none, and what the job or the network did is not its fault."""
    return not isinstance(error, (SystemExit, *_NOT_THE_SCRIPT))


def failure(
    error: BaseException,
    *,
    worker: str,
    incarnation: int,
    step: int = -1,
    slot: int = -1,
    samples: tuple[int, ...] = (),
) -> WorkerFailed:
    """Return the event that tells it.

    Args:
        error: what the script raised.
        worker: whose script.
        incarnation: of it.
        step: that it was at, -1: none.
        slot: that was being computed, -1: none.
        samples: of that slot.
    """
    return WorkerFailed(
        worker=worker,
        incarnation=incarnation,
        error=one_line(error),
        traceback="".join(traceback.format_exception(error)),
        step=step,
        slot=slot,
        samples=samples,
    )


def one_line(error: BaseException) -> str:
    """Return the last line of what an error says, without the hints that stand behind it."""
    notes = getattr(error, "__notes__", ())  # hints: they stand behind what went wrong, and say what to do
    lines = [line.strip() for line in traceback.format_exception_only(error)]
    return next((line for line in reversed(lines) if line and line not in notes), type(error).__name__)
