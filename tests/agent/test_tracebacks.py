"""The same traceback is shown once, of whichever worker it is; nothing else is touched, and the logs hold all."""

from __future__ import annotations

import io
import os
from pathlib import Path

from reknit.worker.agent.display import Display
from reknit.worker.agent.output import Log, Output
from reknit.worker.agent.tracebacks import Seen, Tracebacks

BOOM = b'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f(%s)\nValueError: boom'


def shown(stream: Tracebacks, text: bytes) -> list[bytes]:
    return [line for part in text.split(b"\n") for line in stream.take(part)]


def test_the_first_is_whole_the_others_are_a_line() -> None:
    seen = Seen()
    first, second = Tracebacks(seen), Tracebacks(seen)
    assert shown(first, BOOM % b"x") == (BOOM % b"x").split(b"\n")
    assert shown(second, BOOM % b"x") == [b"ValueError: boom (same error again; see the log)"]
    assert shown(first, BOOM % b"x") == [b"ValueError: boom (same error again; see the log)"]
    assert shown(first, BOOM % b"y") == (BOOM % b"y").split(b"\n"), "from another line it is another one"


def test_addresses_make_no_difference() -> None:
    stream = Tracebacks(Seen())
    shown(stream, BOOM % b"<object at 0x7f12ab>")
    assert len(shown(stream, BOOM % b"<object at 0x7f99cd>")) == 1


def test_other_lines_pass_at_once_also_when_they_are_the_same() -> None:
    stream = Tracebacks(Seen())
    for _ in range(3):
        assert shown(stream, b"  indented\nValueError: boom\n") == [b"  indented", b"ValueError: boom", b""]


def test_a_traceback_that_does_not_end_is_shown_when_the_stream_does() -> None:
    stream = Tracebacks(Seen())
    assert shown(stream, b"Traceback (most recent call last):\n  File x") == []
    assert stream.rest() == [b"Traceback (most recent call last):", b"  File x"]
    assert stream.rest() == []


def test_a_new_one_in_the_middle_of_another_and_one_without_end_lose_no_line() -> None:
    stream = Tracebacks(Seen())
    head = b"Traceback (most recent call last):"
    assert shown(stream, head + b"\n  a\n" + head + b"\n  b\nE: x") == [head, b"  a", head, b"  b", b"E: x"]
    endless = shown(stream, head + b"\n" + b"\n".join(b"  %d" % i for i in range(5000)))
    assert endless + stream.rest() == [head, *(b"  %d" % i for i in range(5000))]


def test_two_workers_that_fail_alike_and_their_logs(tmp_path: Path) -> None:
    out, err = io.BytesIO(), io.BytesIO()
    display, seen = Display(out, err), Seen()
    text = BOOM % b"x" + b"\n"
    for worker in ("n-0", "n-1", "n-1"):
        fd, end = os.pipe()
        os.set_blocking(fd, False)
        log = Log(str(tmp_path), worker)
        stream = Output(fd, worker, log, display, error=True, seen=seen)
        os.write(end, text + b"last")
        os.close(end)
        stream.read()
        assert stream.tail == (text + b"last").decode(), "worker.exited tells all of it"
        log.close()
        os.close(fd)
    display.close(30)
    lines = err.getvalue().decode().splitlines()
    assert lines == [
        *(f"[n-0] {line}" for line in (BOOM % b"x").decode().split("\n")),
        "[n-0] last",
        "[n-1] ValueError: boom (same error again; see the log)",
        "[n-1] last",
        "[n-1] ValueError: boom (same error again; see the log)",
        "[n-1] last",
    ]
    assert (tmp_path / "n-1.log").read_bytes() == 2 * (text + b"last")
