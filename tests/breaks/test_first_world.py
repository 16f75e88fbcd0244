"""Somebody is lost between its registration and the first step: the others begin without it.

`pytest -m slow tests/breaks/test_first_world.py`
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from support.breaks import record
from support.hosts import Hosts, NoHosts
from support.launchers import Place
from support.trainings import START, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def training(place: Place) -> Iterator[Training]:
    try:
        with Hosts() as hosts:
            made = Training(place, hosts, ["a", "b", "c"])
            yield made
            made.end()
    except NoHosts as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_one_is_lost_the_moment_it_has_registered(training: Training, number: int) -> None:
    training.begin(trains=False)
    registered = training.event("worker.registered", within=START)
    victim, pid = registered["worker"], registered["pid"]
    at = training.signal(number, pid)
    rest = training.everybody - {victim}
    try:
        if number == signal.SIGSTOP:
            training.until_trains(rest, at, START)
            record("stopped after its registration, first step of the others", training.now() - at, level="hosts")
    finally:
        if number == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    training.whole(training.now())
    if number == signal.SIGSTOP:
        assert training.worker(victim) == pid
    training.finish()
    assert training.check() > 3
