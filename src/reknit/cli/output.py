"""All that the command line writes: data to stdout, everything else to stderr; `Screen` for a run's live display.

Colours only where a person looks: never when the stream is no terminal or NO_COLOR is set. A stream that is gone (a
pipe whose reader ended, a terminal that was closed) is dropped silently: the work behind it goes on.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import math
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TextIO

import msgspec
from rich.cells import cell_len, set_cell_size

from reknit.core.errors import ReknitError

Colour = Literal["", "red", "green", "yellow", "cyan", "dim", "bold"]
_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
_MOST_WAITING = 100_000
_STATES: dict[str, Colour] = {
    "ok": "green",
    "completed": "green",
    "running": "green",
    "cleared": "green",
    "warn": "yellow",
    "warning": "yellow",
    "degraded": "yellow",
    "paused": "yellow",
    "stopped": "yellow",
    "starting": "cyan",
    "interrupted": "yellow",
    "fail": "red",
    "failed": "red",
    "critical": "red",
    "raised": "yellow",
}


def coloured(stream: TextIO) -> bool:
    """True if a person at a terminal reads this stream and did not forbid colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def paint(text: str, colour: Colour, stream: TextIO) -> str:
    """Give the text a colour if the stream shows colours."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour and coloured(stream) else text


def data(text: str) -> None:
    """Write one line (or several) of data to stdout."""
    _write(sys.stdout, text + "\n")


def note(text: str) -> None:
    """Write a remark to stderr."""
    _write(sys.stderr, f"reknit: {text}\n")


def warn(text: str) -> None:
    """Write a warning to stderr."""
    _write(sys.stderr, paint(f"reknit: {text}\n", "yellow", sys.stderr))


def fail(error: ReknitError) -> None:
    """Write an error and the next thing to do to stderr."""
    _write(sys.stderr, f"{paint('error:', 'red', sys.stderr)} {error}\n")
    if error.hint:
        _write(sys.stderr, f"  {error.hint}\n")


def document(value: Any) -> None:
    """Write one JSON document to stdout; structs are told by their fields."""
    data(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def line(value: Any) -> None:
    """Write one JSON value as one line to stdout, at once."""
    data(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """Turn structs into plain values that JSON can hold (NaN and infinities become text)."""
    return _finite(msgspec.to_builtins(value, str_keys=True, enc_hook=_scalar))


def _scalar(value: Any) -> Any:
    """A number of numpy's, or a path, as a plain value."""
    return value.item() if hasattr(value, "item") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> None:
    """Write aligned columns to stdout; words that name a state get its colour; nothing is cut off."""
    texts = [[str(cell) for cell in row] for row in rows]
    heads = [c.upper() for c in columns]
    widths = [max(cell_len(row[i]) for row in [heads, *texts]) for i in range(len(columns))]
    data(indent + paint(_aligned(heads, heads, widths), "dim", sys.stdout))
    for row in texts:
        shown = [paint(cell, _STATES.get(cell, ""), sys.stdout) for cell in row]
        data(indent + _aligned(row, shown, widths))


def _aligned(row: Sequence[str], shown: Sequence[str], widths: Sequence[int]) -> str:
    cells = [s + " " * (w - cell_len(cell)) for cell, s, w in zip(row, shown, widths, strict=True)]
    return "  ".join(cells).rstrip()


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        _silence(stream)


def _silence(stream: TextIO) -> None:
    """Let a stream that is gone end in /dev/null, so that later writes and the flush at exit do no harm."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class Screen:
    """Shows a run: lines as they come, and on a terminal one live line at the bottom.

    A thread of its own writes, so that a terminal that does not read (Ctrl-S, a pager) never holds up the run; what
    waits beyond 100,000 lines is dropped and counted.
    """

    def __init__(self) -> None:
        self.live = coloured(sys.stderr) or (_is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb")
        self._waiting: collections.deque[tuple[TextIO, str]] = collections.deque()
        self._status = ""
        self._shown = ""
        self._dropped = 0
        self._more = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="screen", daemon=True)
        self._thread.start()

    def out(self, text: str) -> None:
        """Show a line of the workers' stdout."""
        self._put(sys.stdout, text)

    def err(self, text: str) -> None:
        """Show a line of the workers' stderr."""
        self._put(sys.stderr, text)

    def note(self, text: str, colour: Colour = "") -> None:
        """Show a remark of our own."""
        self._put(sys.stderr, paint(f"reknit: {text}", colour, sys.stderr))

    def status(self, text: str) -> None:
        """Replace the live line; without a terminal nothing happens."""
        with self._more:
            if self.live and text != self._status:
                self._status = text
                self._more.notify()

    def close(self, within: float = 2.0) -> None:
        """Take the live line away, write what waits and end the thread."""
        with self._more:
            self._closing = True
            self._status = ""
            self._more.notify()
        self._thread.join(within)

    def _put(self, stream: TextIO, text: str) -> None:
        with self._more:
            if len(self._waiting) >= _MOST_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append((stream, text))
            self._more.notify()

    def _work(self) -> None:
        while True:
            with self._more:
                while not (self._waiting or self._status != self._shown or self._closing):
                    self._more.wait()
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1000))]
                status, dropped, self._dropped = self._status, self._dropped, 0
                over = self._closing and not self._waiting
            if dropped:
                batch.append((sys.stderr, f"reknit: {dropped} lines were not shown: nobody reads them; see the logs"))
            self._show(batch, status)
            if over:
                return

    def _show(self, batch: list[tuple[TextIO, str]], status: str) -> None:
        if self._shown and (batch or status != self._shown):
            _write(sys.stderr, "\r\x1b[2K")
            self._shown = ""
        for stream, lines in itertools.groupby(batch, key=lambda entry: entry[0]):
            _write(stream, "".join(text + "\n" for _, text in lines))
        if status and status != self._shown:
            width = _width()
            cut = status if cell_len(status) < width else set_cell_size(status, max(1, width - 1))
            _write(sys.stderr, cut)
        self._shown = status


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
