"""The broker is gone: steps go on, and what breaks meanwhile is mended once it is back.

All of it: `pytest -m slow tests/breaks/test_broker_away.py`. REKNIT_OUTAGE says how many seconds an outage lasts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from support.agents import until
from support.breaks import record
from support.stages import Stage
from support.trainings import MEND, PLANE, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OUTAGE = float(os.environ.get("REKNIT_OUTAGE", "8"))


@contextlib.contextmanager
def killed(run: Training) -> Iterator[None]:
    """The broker is killed, and nobody is there to start it again for a while."""
    assert run.up is not None
    broker = run.pids(PLANE, "nats-server")
    run.up.signal(signal.SIGSTOP)
    run.signal(signal.SIGKILL, *broker)
    try:
        yield
    finally:
        run.up.signal(signal.SIGCONT)
    until(lambda: [p for p in run.pids(PLANE, "nats-server") if p not in broker], "a new broker")


@contextlib.contextmanager
def stopped(run: Training) -> Iterator[None]:
    """The broker does not run: connections stay, and nothing is answered."""
    broker = run.pids(PLANE, "nats-server")
    run.signal(signal.SIGSTOP, *broker)
    try:
        yield
    finally:
        run.signal(signal.SIGCONT, *broker)


@contextlib.contextmanager
def unplugged(run: Training) -> Iterator[None]:
    """The whole control plane is off the network."""
    plane = run.hosts.hosts[PLANE]
    run.hosts.unplug(plane)
    try:
        yield
    finally:
        run.hosts.plug(plane)


@contextlib.contextmanager
def all_killed(run: Training) -> Iterator[None]:
    """Broker and services are killed together with who keeps them, and started again as a person would."""
    run.signal(signal.SIGKILL, *run.pids(PLANE))
    try:
        yield
    finally:
        run.start_plane()


OUTAGES: dict[str, Callable[[Training], contextlib.AbstractContextManager[None]]] = {
    "killed": killed,
    "stopped": stopped,
    "unplugged": unplugged,
    "all killed": all_killed,
}


def settled(run: Training, at: float) -> None:
    """The control plane works again: who dies now is taken out, and replaced."""
    victim = run.ring()[-1]
    began = run.signal(signal.SIGKILL, run.worker(victim))
    run.mended(began, run.everybody - {victim})
    run.whole(run.now())
    record("broker back, until a death after it is mended", run.now() - at, level="hosts")


@pytest.mark.parametrize("how", OUTAGES)
def test_steps_go_on_and_nobody_is_evicted(run: Training, how: str) -> None:
    pids = {w: run.worker(w) for w in run.everybody}
    at = run.now()
    with OUTAGES[how](run):
        while run.now() < at + OUTAGE:
            run.goes_on(run.everybody, 5)
        back = run.now()
    run.goes_on(run.everybody, 20)
    until(lambda: run.events("shards.committed", back), "steps of after it on the log", MEND)
    assert run.evicted(at) == set()
    assert {w: run.worker(w) for w in run.everybody} == pids
    record(f"broker {how}, longest pause of a step", max(run.longest_pause(w, at, back) for w in pids), level="hosts")
    settled(run, back)


def dies(run: Training) -> set[str]:
    victim = run.ring()[1]
    run.signal(signal.SIGKILL, run.worker(victim))
    return {victim}


def loses_a_connection(run: Training) -> set[str]:
    first, second = run.ring()[1:3]
    assert run.hosts.reset(run.host(first), run.host(second))
    return set()


def freezes(run: Training) -> set[str]:
    victim = run.ring()[2]
    run.signal(signal.SIGSTOP, run.worker(victim))
    return {victim}


BREAKS = {"a worker dies": dies, "a connection is reset": loses_a_connection, "a worker freezes": freezes}


@pytest.mark.parametrize("what", BREAKS)
@pytest.mark.parametrize("how", OUTAGES)
def test_what_breaks_meanwhile_is_mended_once_it_is_back(run: Training, how: str, what: str) -> None:
    pids = {w: run.worker(w) for w in run.everybody}
    with OUTAGES[how](run):
        at = run.now()
        gone = BREAKS[what](run)
        time.sleep(min(3.0, OUTAGE))  # how long it is away; nothing is waited for
        back = run.now()
    try:
        record(f"broker {how}, {what}", at + run.mended(at, run.everybody - gone) - back, level="hosts")
        run.goes_on(run.everybody - gone, 5)
        assert run.evicted(at) == gone
    finally:
        run.signal(signal.SIGCONT, *pids.values())
    run.whole(run.now())
    survivors = run.everybody - gone
    assert {w: run.worker(w) for w in survivors} == {w: pids[w] for w in survivors}


def test_after_all_of_it_every_step_is_the_calm_runs(stage: Stage) -> None:
    if stage.run is None:
        pytest.skip("no job is left")
    stage.run.finish()
    assert stage.run.check() > 3
    stage.close()
