"""What a worker writes: shown line by line, logged whole, and its last words kept for worker.exited."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from .display import Display
from .tracebacks import Seen, Tracebacks

TAIL_LINES = 40
_TAIL_LINE = 500
"""Bytes of a line that the tail keeps."""
_LONGEST_LINE = 64 * 1024
_AT_ONCE = 256 * 1024
"""Bytes read before others get their turn."""
_PIPE = 1024 * 1024
"""No pipe holds more: what comes after is not of the process that has ended, but of one that it left behind."""


class Log:
    """`<log_dir>/<worker>.log`, appended by all processes of a worker id."""

    def __init__(self, directory: str, worker: str) -> None:
        self.path = str(Path(directory) / f"{worker}.log") if directory else ""
        self._trouble = ""
        self._told = False
        self._file: int | None = None
        if self.path:
            try:
                Path(directory).mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            except OSError as error:
                self._trouble = f"no log {self.path}: {error}"

    def trouble(self) -> str:
        """Return, once, why the log is missing or not whole; empty otherwise."""
        if self._told or not self._trouble:
            return ""
        self._told = True
        return self._trouble

    def write(self, data: bytes) -> None:
        """Append; a full disk does not stop anything, see `trouble`."""
        while self._file is not None and data:
            try:
                data = data[os.write(self._file, data) :]
            except OSError as error:
                self._trouble = self._trouble or f"log {self.path} is not whole: {error}"
                return

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Output:
    """One stream of one process.

    Args:
        fd: our end of its pipe, non-blocking.
        who: prefix of the lines.
        error: stderr.
        seen: tracebacks that the node has shown; None: this stream's only.
    """

    def __init__(self, fd: int, who: str, log: Log, display: Display, *, error: bool, seen: Seen | None = None) -> None:
        self.fd = fd
        self.ended = False
        self._who = who
        self._log = log
        self._display = display
        self._error = error
        self._rest = b""
        self._tracebacks = Tracebacks(seen if seen is not None else Seen())
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)

    @property
    def tail(self) -> str:
        """The last lines."""
        return b"\n".join(self._tail).decode(errors="replace")

    def read(self, *, everything: bool = False) -> None:
        """Take what the pipe holds; `everything`: until it is empty, for a process that has ended."""
        taken = 0
        while not self.ended and taken < (_PIPE if everything else _AT_ONCE):
            try:
                data = os.read(self.fd, 64 * 1024)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.ended = True
                self._end()
                return
            taken += len(data)
            self._log.write(data)
            self._split(data)

    def finish(self) -> None:
        """Take what is left, with a last line that has no end."""
        with suppress(OSError):
            self.read(everything=True)
        self._end()

    def _split(self, data: bytes) -> None:
        # a progress bar ends its lines with \r: shown like others, or nothing of it would come before its end
        lines = (self._rest + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._take(line)
        if len(self._rest) > _LONGEST_LINE:
            self._flush()

    def _flush(self) -> None:
        if self._rest:
            rest, self._rest = self._rest, b""
            self._take(rest)

    def _end(self) -> None:
        self._flush()
        self._show(self._tracebacks.rest())

    def _take(self, line: bytes) -> None:
        self._show(self._tracebacks.take(line))
        if self._error:
            self._tail.append(line[:_TAIL_LINE])

    def _show(self, lines: list[bytes]) -> None:
        for line in lines:
            self._display.line(self._who, line, error=self._error)
