"""The agent's own stdout and stderr, which the launcher shows: written by a thread, for a terminal may block.

A reader that stands still (Ctrl-S, a full pipe) must not hold up heartbeats or training: lines that do not fit are
dropped and counted. The workers' logs hold all of them.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import BinaryIO

_LIMIT = 4 * 1024 * 1024
"""Bytes that may wait."""


class Display:
    """Prefixed lines, in order over both streams."""

    def __init__(self, out: BinaryIO | None = None, err: BinaryIO | None = None) -> None:
        self._files = {False: out or sys.stdout.buffer, True: err or sys.stderr.buffer}
        self._queue: deque[tuple[bool, bytes]] = deque()
        self._waiting = 0
        self._dropped = 0
        self._closed = False
        self._ready = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="display", daemon=True)
        self._thread.start()

    def line(self, who: str, text: bytes, *, error: bool) -> None:
        """Show one line of somebody."""
        whole = b"[%s] %s\n" % (who.encode(), text)
        with self._ready:
            if self._waiting + len(whole) > _LIMIT:
                self._dropped += 1
                return
            self._put(error, whole)

    def say(self, who: str, text: str) -> None:
        """Show the agent's own words on stderr, each line of them."""
        for line in text.splitlines():
            self.line(who, line.encode(errors="replace"), error=True)

    def close(self, seconds: float) -> None:
        """Write what waits and end; gives up after so many seconds."""
        with self._ready:
            self._closed = True
            self._ready.notify()
        self._thread.join(seconds)

    def _put(self, error: bool, whole: bytes) -> None:
        self._queue.append((error, whole))
        self._waiting += len(whole)
        self._ready.notify()

    def _write(self) -> None:
        while True:
            with self._ready:
                while not self._queue and not self._closed:
                    self._ready.wait()
                batch, self._queue = self._queue, deque()
                self._waiting = 0
                if self._dropped:
                    batch.append((True, b"[reknit] %d lines not shown, see the logs\n" % self._dropped))
                    self._dropped = 0
                if not batch:
                    return
            for error, whole in batch:
                self._write_one(self._files[error], whole)

    def _write_one(self, file: BinaryIO, whole: bytes) -> None:
        try:
            file.write(whole)
            file.flush()
        except (OSError, ValueError):
            # nobody reads any more (a closed terminal, a launcher that was killed): training goes on, the logs have it
            return
