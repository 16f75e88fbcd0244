"""A traceback is shown once: where workers of a node fail alike, or one of them again, one line tells it. Pure.

    seen = Seen()                               one a node
    stream = Tracebacks(seen)                   one a stream of a process
    for line in …: show(*stream.take(line))
    show(*stream.rest())                        when the stream ends

The workers' logs hold all of them.
"""

from __future__ import annotations

import re

_HEAD = b"Traceback (most recent call last):"
_LONGEST = 2000
"""Lines of a traceback beyond which it is shown as it comes."""
_MOST = 1000
"""Tracebacks that are remembered; then the oldest is forgotten."""
_ADDRESS = re.compile(rb"0x[0-9a-fA-F]+")


class Seen:
    """How often each traceback was there, whatever the addresses in it."""

    def __init__(self) -> None:
        self._times: dict[bytes, int] = {}

    def count(self, whole: bytes) -> int:
        """Count a traceback; returns how often it was there, this time included."""
        key = _ADDRESS.sub(b"0x", whole)
        times = self._times.pop(key, 0) + 1
        self._times[key] = times
        if len(self._times) > _MOST:
            del self._times[next(iter(self._times))]
        return times


class Tracebacks:
    """One stream's lines, its repeated tracebacks made short."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._held: list[bytes] = []

    def take(self, line: bytes) -> list[bytes]:
        """Take the next line; returns what is to be shown now."""
        if not self._held:
            if line != _HEAD:
                return [line]
            self._held = [line]
            return []
        if line == _HEAD:
            held, self._held = self._held, [line]
            return held
        self._held.append(line)
        # the calls are indented; the exception is not, and ends it
        if line and not line.startswith(b" "):
            return self._ended(line)
        return self.rest() if len(self._held) >= _LONGEST else []

    def rest(self) -> list[bytes]:
        """Return what was held back for its end, which does not come."""
        held, self._held = self._held, []
        return held

    def _ended(self, error: bytes) -> list[bytes]:
        whole = self.rest()
        times = self._seen.count(b"\n".join(whole))
        return whole if times == 1 else [b"%s (same error again, %s time; see the log)" % (error, _ordinal(times))]


def _ordinal(number: int) -> bytes:
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{last}".encode()
