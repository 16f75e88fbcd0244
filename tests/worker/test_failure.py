"""A script that raises says so once, with its place in the run, and before its door is shut."""

from __future__ import annotations

import types
from typing import Any

import pytest

from reknit.core.errors import ControlPlaneUnreachable, RefusedByJob
from reknit.core.events import WorkerFailed
from reknit.worker.failure import is_the_scripts, one_line
from reknit.worker.session import Ring, Session


class Run:
    """What a session knows of its run, and when it is closed."""

    def __init__(self, said: list[Any]) -> None:
        self.shared = types.SimpleNamespace(incarnation=77)
        self.slots = types.SimpleNamespace(step=4, slot=1, samples=(8, 9))
        self._said = said

    def close(self, *, failed: bool) -> None:
        self._said.append("failed" if failed else "closed")


@pytest.fixture
def said() -> list[Any]:
    return []


@pytest.fixture
def session(said: list[Any]) -> Session:
    session = Session(None)
    session._outlet = types.SimpleNamespace(post=said.append)
    session.running = Run(said)
    return session


def leave_with(session: Session, error: BaseException) -> None:
    with pytest.raises(type(error)), Ring(session):
        raise error


def test_the_error_is_told_before_the_door_is_shut_and_once(session: Session, said: list[Any]) -> None:
    boom = ValueError("boom")
    leave_with(session, boom)
    session.failed(boom)  # as the process does when the error has ended the script
    event, closed = said
    assert isinstance(event, WorkerFailed)
    assert (event.error, event.incarnation, event.step, event.slot, event.samples) == (
        "ValueError: boom",
        77,
        4,
        1,
        (8, 9),
    )
    assert "raise error" in event.traceback
    assert closed == "failed"


@pytest.mark.parametrize(
    "error", [SystemExit(3), RefusedByJob("other torch"), ControlPlaneUnreachable("gone"), SystemExit(0)]
)
def test_what_is_not_the_scripts_fault_is_not_told_as_such(
    session: Session, said: list[Any], error: BaseException
) -> None:
    assert not is_the_scripts(error)
    leave_with(session, error)
    assert [one for one in said if isinstance(one, WorkerFailed)] == []


def test_a_hint_is_not_the_error() -> None:
    error = ValueError("boom")
    error.add_note("hint: try again")
    assert one_line(error) == "ValueError: boom"
