"""What a node says about its way to the broker: that it is gone, what that means, and that it is back. Pure."""

from __future__ import annotations

PATIENCE = 1.0
"""Seconds without a connection until it is said: a broker that is started again is back sooner."""


class Contact:
    """Told four times a second whether the connection stands; answers what is to be said, empty for nothing."""

    def __init__(self) -> None:
        self._lost: float | None = None
        self._said = False

    def look(self, connected: bool, now: float) -> str:
        """Take in how the connection is.

        Args:
            connected: does it stand?
            now: monotonic seconds.
        """
        if connected:
            told = f"the broker is back after {now - (self._lost or now):.0f} s" if self._said else ""
            self._lost, self._said = None, False
            return told
        self._lost = now if self._lost is None else self._lost
        if self._said or now - self._lost < PATIENCE:
            return ""
        self._said = True
        return (
            "no connection to the broker: steps go on as long as the ring holds; if it breaks, this node waits, "
            "since no world can be changed from here"
        )
