"""The agent and its broker: none at the start, a wrong password, and one that goes away in the middle."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reknit.core.broker import Broker
from reknit.core.context import Endpoint
from reknit.core.events import AgentLeft, WorkerExited
from support.agents import AgentUnderTest, agent, alive, until

FOREVER = "import time\nprint('runs', flush=True)\nwhile True:\n    time.sleep(0.05)\n"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path / "broker", die_with_parent=True)
    one.start()
    try:
        yield one
    finally:
        one.stop()


def ends_with(one: AgentUnderTest, code: int, text: str) -> None:
    assert one.wait() == code, one.told()
    assert text in one.told()
    below = one.descendants()
    assert not below


@pytest.mark.slow  # it is given 10 s to answer
def test_no_broker(tmp_path: Path) -> None:
    with agent(Endpoint(url="nats://127.0.0.1:9"), tmp_path, FOREVER) as one:
        one.start()
        until(one.descendants, "the forkserver is started meanwhile")
        below = [p.pid for p in one.descendants()]
        ends_with(one, 75, "nats://127.0.0.1:9")
        until(lambda: not any(map(alive, below)), "nothing is left", 2.0)


def test_asked_to_end_before_the_broker_answers(tmp_path: Path) -> None:
    with agent(Endpoint(url="nats://127.0.0.1:9"), tmp_path, FOREVER) as one:
        one.start()
        until(one.descendants, "it is up")
        began = time.monotonic()
        one.signal(signal.SIGTERM)
        assert one.wait() in {143, -15}
        assert time.monotonic() - began < 5
        until(lambda: not one.descendants(), "nothing is left", 2.0)


def test_a_wrong_password(broker: Broker, tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(broker.endpoint, password="wrong")
    with agent(wrong, tmp_path, FOREVER) as one:
        one.start()
        ends_with(one, 77, "refused")


def test_the_broker_goes_and_comes_back(broker: Broker, tmp_path: Path) -> None:
    with agent(broker.endpoint, tmp_path, FOREVER, nproc=2) as one:
        one.submit().start()
        first, second = sorted((one.started(1), one.started(2)), key=lambda e: e.worker)
        one.register(first)
        until(lambda: one.told().count("runs") == 2, "both run")
        broker.kill()
        os.kill(first.pid, signal.SIGKILL)
        # training goes on without it: the dead one is replaced all the same
        until(lambda: one.told().count("runs") == 3, "the dead worker is replaced")
        assert alive(second.pid)
        one.says("no connection to the broker: steps go on as long as the ring holds")
        broker.start()
        one.says("the broker is back after")
        exited = one.event(WorkerExited)
        assert (exited.worker, exited.code) == (first.worker, -9)
        assert one.started(3).worker == first.worker
        one.signal(signal.SIGTERM)
        assert one.wait() == 0
        assert one.events(AgentLeft)


def test_it_ends_while_the_broker_is_away(broker: Broker, tmp_path: Path) -> None:
    with agent(broker.endpoint, tmp_path, FOREVER) as one:
        one.submit().start()
        one.says("runs")
        one.started()
        broker.kill()
        one.signal(signal.SIGTERM)
        assert one.wait(20) == 0
        assert "the broker is away: 2 events of this node were not told" in one.told()
