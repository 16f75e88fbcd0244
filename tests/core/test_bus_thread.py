"""The bus from synchronous code."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reknit.core import telemetry
from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.context import Endpoint, to_env
from reknit.core.errors import ControlPlaneUnreachable, ReknitError, StaleWorld, Unauthorized
from reknit.core.events import NodePulse, WorldChanged
from support.buses import Broker, numbered, numbers, wait_until


@pytest.fixture
def bus(endpoint: Endpoint):  # type: ignore[no-untyped-def]
    bus = BusThread(endpoint, "sync")
    bus.start()
    yield bus
    bus.close(0.0)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "bus"]


def test_everything_from_synchronous_code_and_no_thread_left(endpoint: Endpoint) -> None:
    bus = BusThread(endpoint, "sync")
    bus.start()
    heard: list[Received] = []
    assert bus.publish("j", numbered(0)) == 1
    bus.follow(heard.append, job="j")
    assert numbers(heard) == [0]
    for n in range(1, 50):
        bus.post("j", numbered(n))
    assert bus.flush(20.0)
    wait_until(lambda: len(heard) == 50, "all")
    assert numbers(heard) == list(range(50))
    assert bus.connected
    assert bus.client_id > 0
    assert len(bus.call(lambda b: b.backlog(job="j"))) == 50
    pulses: list[object] = []
    bus.pulses(lambda job, pulse: pulses.append((job, pulse)))
    pulse = NodePulse(node="n")
    bus.beat("j", pulse)
    wait_until(lambda: pulses == [("j", pulse)], "the heartbeat")
    assert threads() == ["bus"]
    assert bus.close(5.0)
    assert threads() == []
    assert bus.close(5.0)
    bus.post("j", numbered(1))  # after the end: nothing happens
    bus.beat("j", pulse)
    with pytest.raises(ControlPlaneUnreachable):
        bus.publish("j", numbered(1))


def test_errors_come_to_the_caller(bus: BusThread) -> None:
    world = WorldChanged(generation=1, run="r", status="running")
    bus.publish("j", world, expect_last=0)
    with pytest.raises(StaleWorld):
        bus.publish("j", world, expect_last=0)
    with pytest.raises(ReknitError, match="started already"):
        bus.start()


def test_a_failed_start_leaves_no_thread(endpoint: Endpoint) -> None:
    wrong = Endpoint(url=endpoint.url, user="reknit", password="wrong")
    with pytest.raises(Unauthorized):
        BusThread(wrong, "t").start()
    with pytest.raises(ControlPlaneUnreachable):
        BusThread(Endpoint(url="nats://127.0.0.1:1"), "t").start(timeout=0.2)
    assert threads() == []


def test_posts_of_several_threads_are_all_stored_each_in_its_order(bus: BusThread) -> None:
    def post(first: int) -> None:
        for n in range(first, first + 50):
            bus.post("j", numbered(n))

    posting = [threading.Thread(target=post, args=(100 * k,)) for k in range(4)]
    for thread in posting:
        thread.start()
    for thread in posting:
        thread.join()
    assert bus.flush(20.0)
    stored = numbers(bus.call(lambda b: b.backlog()))
    for k in range(4):
        assert [n for n in stored if n // 100 == k] == list(range(100 * k, 100 * k + 50))


def test_waiting_from_a_callback_is_refused_instead_of_hanging(bus: BusThread) -> None:
    errors: list[Exception] = []

    def wait_inside(_received: Received) -> None:
        try:
            bus.publish("j", numbered(2))
        except ReknitError as error:
            errors.append(error)

    bus.follow(wait_inside)
    bus.publish("j", numbered(1))
    wait_until(lambda: errors, "the refusal")
    assert "cannot wait for itself" in str(errors[0])


def test_a_repeated_call_survives_its_own_errors_and_stops(bus: BusThread) -> None:
    calls: list[float] = []

    def call() -> None:
        calls.append(time.monotonic())
        if len(calls) == 2:
            raise ValueError("once")

    stop = bus.every(0.02, call)
    wait_until(lambda: len(calls) >= 5, "five calls")
    stop()
    time.sleep(0.1)
    count = len(calls)
    time.sleep(0.1)
    assert len(calls) == count


def test_a_busy_main_thread_does_not_stop_heartbeats(bus: BusThread) -> None:
    calls: list[float] = []
    bus.every(0.02, lambda: calls.append(1.0))
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        sum(range(1000))
    assert len(calls) >= 5


def test_closing_while_the_broker_is_away_takes_bounded_time_and_says_so(broker: Broker) -> None:
    bus = BusThread(broker.endpoint, "t")
    bus.start()
    broker.kill()
    bus.post("j", numbered(1))
    began = time.monotonic()
    assert not bus.close(0.3)
    assert time.monotonic() - began < 8.0
    assert threads() == []


def test_an_outage_is_survived(broker: Broker) -> None:
    bus = BusThread(broker.endpoint, "t")
    bus.start()
    try:
        broker.kill()
        for n in range(10):
            bus.post("j", numbered(n))
        broker.start()
        assert bus.flush(20.0)
        assert numbers(bus.call(lambda b: b.backlog())) == list(range(10))
    finally:
        bus.close(1.0)


def test_a_call_that_never_ends_is_given_up(bus: BusThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reknit.core.bus_thread._MARGIN", 0.1)

    async def forever(_bus: object) -> None:
        await asyncio.sleep(1000)

    with pytest.raises(ControlPlaneUnreachable, match="did not answer"):
        bus.call(forever, timeout=0.1)


_FORGETFUL = """
import sys
from reknit.core.bus_thread import BusThread
from reknit.core.context import Endpoint, from_env
bus = BusThread(from_env("E", Endpoint), "t")
bus.start()
print("started")
"""


def test_a_process_that_forgets_to_close_ends_nevertheless(endpoint: Endpoint) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORGETFUL],
        env={"E": to_env(endpoint), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
    assert "Traceback" not in done.stderr


_TRACED = """
import sys
from reknit.core import telemetry
from reknit.core.bus_thread import BusThread
from reknit.core.context import Endpoint, from_env
from reknit.core.events import JobScaled
telemetry.setup("reknit-test")
bus = BusThread(from_env("E", Endpoint), "t")
bus.start()
with telemetry.tracer().start_as_current_span("outer"):
    print(telemetry.inject())
    bus.post("j", JobScaled(workers=1))
    bus.publish("j", JobScaled(workers=2))
bus.close(10.0)
"""


def test_the_callers_span_travels_although_another_thread_sends(endpoint: Endpoint, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TRACED],
        env={"E": to_env(endpoint), "PATH": "/usr/bin:/bin", telemetry.TRACE_DIR: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    bus = BusThread(endpoint, "t")
    bus.start()
    try:
        stored = bus.call(lambda b: b.backlog())
        assert [r.trace for r in stored] == [done.stdout.strip()] * 2
    finally:
        bus.close()
