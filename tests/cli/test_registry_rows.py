"""What `reknit registry` shows of an entry, by tables."""

from __future__ import annotations

import pytest

from reknit.cli.registry import Answers, _line, _strangers, row_of
from reknit.core.registry_entry import GONE, Entry, Seen


def seen(age: float = 1.0, **more: object) -> Seen:
    values = {"kind": "service", "name": "shards", "id": "x", "reason": "1 job at work", **more}
    return Seen("k", Entry(**values), 5.0, age)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "answers", "health", "reason"),
    [
        (seen(), None, "passing", "1 job at work"),
        (seen(), {"x": {"seconds": 0.004}}, "passing", "1 job at work, answers in 4 ms"),
        (seen(), {}, "warning", "does not answer $SRV.PING within 1 s"),
        (seen(health="warning", reason="bad input"), {"x": {"seconds": 0.004}}, "warning", "bad input"),
        (seen(age=16.0), {}, "critical", GONE),
        (seen(kind="agent", reason="2 of 2 workers"), {}, "passing", "2 of 2 workers"),
    ],
)
def test_how_well_an_entry_is(entry: Seen, answers: Answers | None, health: str, reason: str) -> None:
    row = row_of(entry, answers)
    assert (row["health"], row["reason"]) == (health, reason)
    assert row["last_seen"] == entry.age


def test_services_of_others_are_shown_too() -> None:
    answers = {
        "x": {"name": "reknit-shards", "seconds": 0.001},
        "z": {"name": "billing", "version": "2.0.0", "seconds": 0.002},
    }
    (row,) = _strangers([seen()], answers)
    assert (row["name"], row["version"], row["reason"]) == ("billing", "2.0.0", "only answers $SRV.PING, in 2 ms")


def test_a_change_as_a_line() -> None:
    row = {"time": 0.0, "what": "changed", **row_of(seen(address="http://[::1]:80", health="warning", reason="slow"))}
    assert _line(row)[10:] == "changed  service  shards at http://[::1]:80  warning: slow"
    assert _line({**row, "what": "left"})[10:] == "left     service  shards at http://[::1]:80"
