"""One line a record on stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from reknit.core import log


@pytest.fixture(autouse=True)
def unnamed_afterwards() -> Iterator[None]:
    yield
    log._process.clear()


def fail() -> None:
    raise ValueError("two\nlines")


def test_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(log.FORMAT, raising=False)
    log.setup("monitor", job="j")
    log.get("bus").warning("bad\nmessage", subject="a.b", text="with space", n=3, empty="")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    head, _, rest = err.partition(" warning ")
    assert head.endswith("Z")
    assert rest == "monitor/bus: bad\\nmessage  subject=a.b  text='with space'  n=3  empty=''  job=j\n"


def test_an_error_is_one_line_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        fail()
    except ValueError as error:
        log.get("x").error("failed", exc_info=error)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "ValueError: two\\nlines" in err
    assert "test_log.py" in err
    assert " fail" in err


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log.FORMAT, "json")
    log.setup("shards")
    try:
        fail()
    except ValueError:
        log.get("x").error("fäiled", exc_info=True, odd={1}, path=object)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    record = json.loads(err)
    assert record["event"] == "fäiled"
    assert record["level"] == "error"
    assert (record["service"], record["part"]) == ("shards", "x")
    assert record["error"] == "ValueError: two\nlines"
    assert "in fail" in record["traceback"]


def test_debug_is_silent_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    log.get("x").debug("chatter")
    assert capsys.readouterr().err == ""
