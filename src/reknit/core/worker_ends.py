"""How a worker ended, in words. Pure."""

from __future__ import annotations

import signal

from reknit.core.events import WorkerExited, WorkerFailed


def exit_in_words(event: WorkerExited) -> str:
    """Say how a worker's process ended; one cause in one way, whether the signal or its own answer to it was faster."""
    if event.out_of_memory:
        return "killed for memory (out of memory)"
    by = event.signal or _signal_of(event.code)
    if event.expected and (by or not event.code):
        return f"ended as asked ({by})" if by else "ended"
    if event.code < 0:
        return f"killed by signal {by or -event.code}"
    return f"exited with code {event.code}" + (f" ({by})" if by else "")


def ended_well(event: WorkerExited) -> bool:
    """True if it was to end, and its script did not fail over it."""
    return event.expected and (event.code <= 0 or bool(_signal_of(event.code)))


def last_line(event: WorkerFailed) -> str:
    """Return the traceback's last line, or the error itself."""
    lines = [line.strip() for line in event.traceback.splitlines() if line.strip()]
    return lines[-1] if lines else event.error


def _signal_of(code: int) -> str:
    """Name of the signal that an exit status tells of, by itself or as shells write it; empty: of none."""
    try:
        return signal.Signals(-code if code < 0 else code - 128).name
    except ValueError:
        return ""
