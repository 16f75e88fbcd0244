"""What workers write: shown, logged, and the last of it kept."""

import io
import os
import threading
from pathlib import Path

from reknit.worker.agent.display import Display
from reknit.worker.agent.output import Log, Output
from support.agents import until


class Blocked(io.BytesIO):
    """A terminal after Ctrl-S."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.waiting = threading.Event()

    def write(self, data: object) -> int:
        self.waiting.set()
        self.go.wait(30)
        return super().write(data)  # type: ignore[arg-type]


def test_lines_that_nobody_takes_are_counted() -> None:
    out, err = Blocked(), io.BytesIO()
    display = Display(out, err)
    line = b"x" * 1000
    display.line("w", line, error=False)
    assert out.waiting.wait(30)
    for _ in range(6000):
        display.line("w", line, error=False)
    out.go.set()
    display.close(30)
    shown = out.getvalue().count(b"[w] x")
    assert 4000 < shown < 6001
    assert err.getvalue() == b"[reknit] %d lines not shown, see the logs\n" % (6001 - shown)


def test_lines_of_a_stream(tmp_path: Path) -> None:
    out, err = io.BytesIO(), io.BytesIO()
    display = Display(out, err)
    log = Log(str(tmp_path / "logs"), "w0-1")
    fd, end = os.pipe()
    os.set_blocking(fd, False)
    stream = Output(fd, "w0-1", log, display, error=True)
    stream.read()
    os.write(end, b"one\ntwo\r\nthr")
    stream.read()
    os.write(end, b"ee\n10%\r20%\rend")
    stream.read()
    assert stream.tail == "one\ntwo\nthree\n10%\n20%"
    stream.finish()
    os.close(end)
    stream.read()
    assert stream.ended
    assert stream.tail.endswith("20%\nend")
    display.close(30)
    log.close()
    os.close(fd)
    assert err.getvalue() == b"".join(b"[w0-1] %s\n" % x for x in (b"one", b"two", b"three", b"10%", b"20%", b"end"))
    assert out.getvalue() == b""
    assert (tmp_path / "logs" / "w0-1.log").read_bytes() == b"one\ntwo\r\nthree\n10%\r20%\rend"


def test_a_line_without_an_end_does_not_grow_for_ever(tmp_path: Path) -> None:
    display = Display(io.BytesIO(), io.BytesIO())
    fd, end = os.pipe()
    os.set_blocking(fd, False)
    stream = Output(fd, "w", Log("", "w"), display, error=True)
    for _ in range(5):
        os.write(end, b"x" * 60000)
        stream.read()
    until(lambda: stream.tail, "it is cut")
    assert max(map(len, stream.tail.splitlines())) <= 500
    display.close(30)
    os.close(fd)
    os.close(end)


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "w.log").symlink_to("/dev/full")
    log = Log(str(tmp_path), "w")
    assert log.trouble() == ""
    log.write(b"x")
    log.write(b"y")
    assert "No space left on device" in log.trouble()
    assert log.trouble() == ""


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = Log(str(tmp_path / "file" / "logs"), "w")
    log.write(b"x")
    assert log.trouble().startswith("no log ")
    log.close()
