"""The session of this process, for those who must find it without holding it: signals, failure reports, heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Session

_current: Session | None = None


def current() -> Session | None:
    """Return the session that is open, or that ended with an exception and can still report it."""
    return _current


def become(session: Session | None) -> None:
    """Set (or clear) the process's session."""
    global _current  # noqa: PLW0603 - one session a process, by design: the ring has one member here
    _current = session
