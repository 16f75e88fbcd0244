"""What a run waits for is said once; again when it changes, and each minute while it goes on. Pure."""

from __future__ import annotations

AGAIN = 60.0
"""Seconds after which the same is said once more."""


class Awaited:
    """What was said to be missing, and when."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0.0

    def worth(self, text: str, now: float) -> bool:
        """True if it should be said now; then it counts as said.

        Args:
            text: what is missing; empty: nothing is, and nothing has to be said.
            now: monotonic seconds.
        """
        if not text or (text == self._text and now - self._at < AGAIN):
            return False
        self._text, self._at = text, now
        return True
