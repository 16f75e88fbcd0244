"""What an agent registers of itself and its workers, by tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from reknit.worker.agent.roster import entries
from reknit.worker.agent.state import Place, State, fresh
from reknit.worker.agent.stuck import Stillness


def node(*places: Place, **changes: Any) -> State:
    state = fresh("n", "j", "r", len(places), grace=30.0, evict_grace=10.0, host="10.0.0.1", pid=7)
    return dataclasses.replace(state, **{"places": places, "mode": "running", **changes})


def place(**changes: Any) -> Place:
    values = {"phase": "alive", "registered": True, "member": True, "pid": 70, "incarnation": 3, **changes}
    return Place("n-0", **values)


def told(state: State, letters: dict[str, str] | None = None) -> list[tuple[str, str, str]]:
    found = entries(state, letters or {}, {"n-0": "10.0.0.1:9"}, address="10.0.0.1", version="1.0.0", since=1.0)
    return [(e.kind, e.health, e.reason) for e in found]


@pytest.mark.parametrize(
    ("changes", "letter", "health", "reason"),
    [
        ({}, "S", "passing", "member"),
        ({"member": False}, "S", "passing", "not in the world yet"),
        ({"registered": False, "member": False}, "R", "warning", "starting"),
        ({"phase": "forking", "registered": False, "member": False}, "", "warning", "starting"),
        ({"phase": "waiting", "failures": 2}, "", "warning", "waits to be started, 2 failures in a row"),
        ({"phase": "ending", "why": "drained"}, "S", "warning", "is being ended: drained"),
        ({"stillness": Stillness(None, 1.0, True)}, "T", "critical", "stopped (T)"),
        ({"stillness": Stillness(None, 1.0, True)}, "S", "passing", "member"),
        ({"stillness": Stillness(None, 1.0, False)}, "T", "passing", "member"),
        ({"leaving": True}, "S", "warning", "leaves as asked"),
        ({"finished": True}, "S", "passing", "has finished"),
        ({"evicted_at": 1.0, "member": False}, "S", "warning", "not in the world: it has a while to come back"),
        ({"refused": "another torch"}, "S", "critical", "refused: another torch"),
        ({"error": "ValueError: no"}, "S", "critical", "its script raised ValueError: no"),
        ({"error": "x" * 999}, "S", "critical", ("its script raised " + "x" * 999)[:200]),
    ],
)
def test_how_well_a_worker_is(changes: dict[str, Any], letter: str, health: str, reason: str) -> None:
    assert told(node(place(**changes)), {"n-0": letter})[1] == ("worker", health, reason)


@pytest.mark.parametrize(
    ("changes", "health", "reason"),
    [
        ({}, "passing", "1 of 1 workers"),
        ({"target": 3}, "passing", "1 of 3 workers"),
        ({"mode": "starting"}, "warning", "the log is being read"),
        ({"mode": "draining", "why": "kernel update"}, "warning", "drains: kernel update"),
        ({"mode": "failing", "why": "n-0: ValueError"}, "critical", "n-0: ValueError"),
        ({"unreaped": (70, 71)}, "warning", "even SIGKILL did not end PID 70, 71"),
    ],
)
def test_how_well_an_agent_is(changes: dict[str, Any], health: str, reason: str) -> None:
    assert told(node(place(), **changes))[0] == ("agent", health, reason)


def test_places_without_a_process_are_not_registered() -> None:
    assert len(told(node(place(phase="empty")))) == 1


def test_what_tells_one_life_from_another() -> None:
    before, after = (
        entries(node(place(incarnation=i)), {}, {"n-0": "a:1"}, address="a", version="1", since=0.0) for i in (3, 4)
    )
    assert before[0].id == after[0].id == "n/7"
    assert (before[1].id, after[1].id) == ("n-0/3", "n-0/4")
    assert before[1].address == "a:1"
