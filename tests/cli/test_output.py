from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from reknit.cli import output
from support.agents import until


def run(source: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **more,  # type: ignore[call-overload]
    )


def test_json_holds_what_json_can_hold(capsys: pytest.CaptureFixture[str]) -> None:
    output.document({"a": float("nan"), "b": [float("inf"), 1.5, (1,)], "ü": None, "n": [np.bool_(True), np.int64(3)]})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"a": "nan", "b": ["inf", 1.5, [1]], "ü": None, "n": [True, 3]}
    assert "ü" in shown


def test_a_table_cuts_nothing_and_has_no_colours_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("state", "what"), [("fail", "x" * 300), ("ok", "日本")])
    shown = capsys.readouterr().out
    assert shown.splitlines() == ["STATE  WHAT", f"fail   {'x' * 300}", "ok     日本"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.paint("a", "red", Terminal()) == "\x1b[31ma\x1b[0m"
    assert output.paint("a", "red", io.StringIO()) == "a"
    monkeypatch.setenv(variable, value)
    assert output.paint("a", "red", Terminal()) == "a"


def test_a_reader_that_is_gone_ends_nothing() -> None:
    source = """
        import sys
        from reknit.cli import output
        for i in range(100_000):
            output.data("x" * 100)
        print("went on", file=sys.stderr)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == "went on\n"
    assert process.wait(30) == 0


def test_the_screen_shows_all_lines_in_order_where_there_is_no_terminal() -> None:
    done = run(
        """
        from reknit.cli.output import Screen
        screen = Screen()
        for i in range(30_000):
            screen.out(str(i))
            screen.status(f"never shown {i}")
        screen.err("error")
        screen.note("done")
        screen.close(30.0)
        """
    )
    assert done.stdout.splitlines() == [str(i) for i in range(30_000)]
    assert done.stderr.splitlines() == ["error", "reknit: done"]


def test_a_terminal_that_does_not_read_holds_nobody_up() -> None:
    source = """
        import sys, time
        from reknit.cli import output
        output._MOST_WAITING = 100
        screen = output.Screen()
        began = time.monotonic()
        for i in range(100_000):
            screen.out("x" * 200)
        print(time.monotonic() - began < 20, file=sys.stderr, flush=True)
        screen.close(0.5)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert "True\n" in iter(process.stderr.readline, "")
    finally:
        process.kill()
        process.communicate()


def test_the_live_line_gives_way_to_lines_and_is_taken_away_in_the_end() -> None:
    main, side = os.openpty()
    source = """
        import time
        from reknit.cli.output import Screen
        screen = Screen()
        screen.status("step 1")
        time.sleep(0.3)
        screen.note("something happened")
        time.sleep(0.3)
        screen.status("step 2 " + "long " * 100)
        time.sleep(0.3)
        screen.close()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        stdin=subprocess.DEVNULL,
        stdout=side,
        stderr=side,
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"},
    )
    os.close(side)
    shown = b""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while piece := os.read(main, 65536):
            shown += piece
    os.close(main)
    assert process.wait(30) == 0
    text = shown.decode()
    assert text.startswith("step 1\r\x1b[2Kreknit: something happened\r\nstep 1")
    assert text.endswith("\r\x1b[2K")
    widest = max(len(part) for part in text.replace("\x1b[2K", "").replace("\n", "\r").split("\r"))
    assert widest < 80, "the live line never wraps"


def test_closing_twice_is_harmless() -> None:
    screen = output.Screen()
    screen.close()
    screen.close()
    until(lambda: not screen._thread.is_alive(), "the thread ends")
