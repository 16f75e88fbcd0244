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
    """The tracebacks that were there, whatever the addresses in them."""

    def __init__(self) -> None:
        self._known: dict[bytes, None] = {}

    def note(self, whole: bytes) -> bool:
        """Note a traceback; False if it was there before."""
        key = _ADDRESS.sub(b"0x", whole)
        new = key not in self._known
        self._known.pop(key, None)
        self._known[key] = None
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        return new


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
        # how often is told once, at the end of the run, of all nodes together
        return whole if self._seen.note(b"\n".join(whole)) else [error + b" (same error again; see the log)"]
