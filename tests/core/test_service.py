"""The service runner: reducers over the log, in processes and in this one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from reknit.core import telemetry
from reknit.core.bus import Bus, Received
from reknit.core.context import ENDPOINT, Endpoint, to_env
from reknit.core.events import JobFinished, JobScaled, NodePulse, TargetsSet, WorldChanged
from reknit.core.service import Decision, Disconnected, Out, Runner, Tick, Told
from support.buses import Broker, joined, numbered, numbers, until


@dataclasses.dataclass(frozen=True)
class Counted:
    """Wants as many worlds as it has heard numbers."""

    wanted: int = 0
    worlds: int = 0
    last: int = 0


def count(state: Counted, told: Told) -> Decision[Counted]:
    """At each tick ask for the next world, if one is missing: level-triggered, as reducers must be."""
    event = told.event
    if isinstance(event, JobScaled):
        if event.workers == 13:
            raise ValueError("unlucky")
        return Decision(dataclasses.replace(state, wanted=state.wanted + 1))
    if isinstance(event, WorldChanged):
        return Decision(dataclasses.replace(state, worlds=event.generation, last=told.seq))
    if isinstance(event, Tick) and state.worlds < state.wanted:
        number = state.worlds + 1
        world = WorldChanged(generation=number, run="r", status="running")
        out = Out(world, id=f"world/{number}", expect_last=state.last)
        return Decision(state, (out,), reason=f"number {number} was heard")
    return Decision(state)


_SERVICE = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import importlib.util
spec = importlib.util.spec_from_file_location("counting", {__file__!r})
counting = importlib.util.module_from_spec(spec)
sys.modules["counting"] = counting
spec.loader.exec_module(counting)
from reknit.core.service import run_service
asyncio.run(run_service("membership", initial=lambda job: counting.Counted(), decide=counting.count, tick=0.02))
"""


def start_service(endpoint: Endpoint, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _SERVICE], env={**os.environ, ENDPOINT: to_env(endpoint), **env}, stderr=subprocess.PIPE
    )


@contextlib.asynccontextmanager
async def running(
    endpoint: Endpoint,
    decide: Callable[[Any, Told], Decision[Any]],
    *,
    act: Any = None,
    tick: float = 0.02,
    pulses: bool = False,
    disconnects: bool = False,
) -> AsyncIterator[Runner[Any]]:
    """A runner in this process, ended at the end."""
    bus = await Bus.connect(endpoint, source="service")
    runner: Runner[Any] = Runner("service", bus, initial=lambda job: (), decide=decide, act=act)
    ended = asyncio.Event()
    task = asyncio.create_task(runner.run(ended, tick=tick, pulses=pulses, disconnects=disconnects))
    try:
        await until(lambda: runner._live or task.done(), "the start")
        yield runner
    finally:
        ended.set()
        await asyncio.wait_for(task, 20.0)
        await bus.close()


async def ready(bus: Bus) -> dict[str, Any]:
    while True:
        answer: dict[str, Any] = json.loads(await bus.request("membership", "ping", timeout=30.0))
        if answer["ready"]:
            return answer
        await asyncio.sleep(0.02)


def generations(received: list[Received]) -> list[int]:
    return [r.event.generation for r in received if isinstance(r.event, WorldChanged)]


async def test_two_services_one_killed_one_started_again(broker: Broker) -> None:
    """Killed at any moment: every decision is taken, once."""
    services = [start_service(broker.endpoint) for _ in range(2)]
    try:
        async with joined(broker.endpoint) as bus:
            heard: list[Received] = []
            await bus.follow(heard.append)
            answer = await ready(bus)
            assert answer["service"] == "membership"
            assert answer["pid"] in [s.pid for s in services]
            for n in range(100, 110):
                await bus.publish("j", numbered(n))
            await until(lambda: len(generations(heard)) >= 3, "three worlds")
            services[0].kill()
            for n in range(110, 115):
                await bus.publish("j", numbered(n))
            await until(lambda: len(generations(heard)) == 15, "all worlds")
            services[1].kill()
            for n in range(115, 120):  # while nobody listens
                await bus.publish("j", numbered(n))
            services.append(start_service(broker.endpoint))
            await until(lambda: len(generations(heard)) == 20, "all worlds")
            broker.kill()
            bus.post("j", numbered(200))
            broker.start()
            await until(lambda: len(generations(heard)) == 21, "the world after the restart of the broker")
            assert generations(heard) == list(range(1, 22))
            assert heard == await bus.backlog()
            services[2].send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(services[2].wait, 20) == 0
    finally:
        for service in services:
            service.kill()
            service.communicate()


async def test_one_bad_job_does_not_end_the_service(endpoint: Endpoint) -> None:
    service = start_service(endpoint)
    try:
        async with joined(endpoint) as bus:
            heard: list[Received] = []
            await bus.follow(heard.append)
            await bus.publish("bad", numbered(13))
            await bus.publish("good", numbered(1))
            await until(lambda: generations(heard) == [1], "the good job's world")
            assert heard[-1].job == "good"
            answer = await ready(bus)
            assert answer["errors"] == 1
            assert answer["jobs"] == ["bad", "good"]
            await bus.publish("bad", numbered(14))
            await until(lambda: len(generations(heard)) == 2, "the bad job's world")
    finally:
        service.terminate()
        _, err = service.communicate(timeout=30)
    said = err.decode()
    assert service.returncode == 0
    assert "job=bad" in said
    assert "ValueError: unlucky" in said
    assert "number 1 was heard  job=good" in said


def test_a_service_without_an_endpoint_says_so() -> None:
    env = {k: v for k, v in os.environ.items() if k != ENDPOINT}
    done = subprocess.run([sys.executable, "-c", _SERVICE], env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{ENDPOINT} is not set" in done.stderr


async def test_terminated_while_the_broker_is_away(broker: Broker) -> None:
    service = start_service(broker.endpoint)
    try:
        async with joined(broker.endpoint) as bus:
            await ready(bus)
        broker.kill()
        service.terminate()
        assert await asyncio.to_thread(service.wait, 20) == 0
    finally:
        service.kill()
        service.communicate()


async def test_replay_is_not_live_and_asks_for_nothing(endpoint: Endpoint) -> None:
    told: list[Told] = []

    def listen(state: Any, what: Told) -> Decision[Any]:
        told.append(what)
        if isinstance(what.event, JobScaled):
            return Decision(state, (Out(WorldChanged(generation=1, run="r", status="running"), id="w"),))
        return Decision(state)

    async with joined(endpoint) as bus:
        for n in range(3):
            await bus.publish("j", numbered(n), id=f"n{n}")
        async with running(endpoint, listen):
            replayed = [t for t in told if not isinstance(t.event, Tick)]
            assert [t.live for t in replayed] == [False] * 3
            assert [(t.seq, t.id, t.source) for t in replayed] == [(n + 1, f"n{n}", "test") for n in range(3)]
            await until(lambda: any(isinstance(t.event, Tick) for t in told), "a tick")
            assert all(t.live for t in told if isinstance(t.event, Tick))
            assert len(await bus.backlog()) == 3
            await bus.publish("j", numbered(9))
            await until(lambda: told[-1].live and any(isinstance(t.event, WorldChanged) for t in told), "the world")
        assert len(await bus.backlog()) == 5


async def test_what_is_under_way_is_not_asked_for_twice(broker: Broker) -> None:
    """Ticks ask again and again during an outage; afterwards there is one."""
    asked: list[int] = []

    def ask(state: Any, told: Told) -> Decision[Any]:
        if isinstance(told.event, WorldChanged):
            return Decision("done")
        if isinstance(told.event, Tick) and state != "done":
            asked.append(1)
            return Decision(state, (Out(WorldChanged(generation=1, run="r", status="running"), id="w"),))
        return Decision(state)

    async with joined(broker.endpoint) as bus:
        async with running(broker.endpoint, ask) as runner:
            broker.kill()
            runner._tell(Told("j", numbered(1), 0.0))
            await until(lambda: len(asked) > 10, "ten ticks")
            assert runner._publications.waiting <= 1
            broker.start()
            await until(lambda: runner._jobs["j"].state == "done", "the world")
        assert generations(await bus.backlog()) == [1]


async def test_what_is_worth_saying_for_a_moment_only_is_not_said_after_an_outage(broker: Broker) -> None:
    """Nor is it said if it had to wait too long behind others; what is always true is said."""

    def ask(state: Any, told: Told) -> Decision[Any]:
        if not isinstance(told.event, JobScaled):
            return Decision(state)
        now = Out(WorldChanged(generation=1, run="r", status="running"), id="now", within=0.3)
        behind = Out(WorldChanged(generation=2, run="r", status="running"), id="behind", within=0.2)
        return Decision(state, (now, behind, Out(TargetsSet(run="r"), id="always")))

    async with joined(broker.endpoint) as bus, running(broker.endpoint, ask) as runner:
        broker.kill()
        runner._tell(Told("j", numbered(1), 0.0))
        assert len(runner._publications.under_way) == 3
        await until(
            lambda: {key[2] for key in runner._publications.under_way} <= {"always"}, "the others to be given up"
        )
        broker.start()
        await until(lambda: not runner._publications.under_way, "the rest")
        assert [type(r.event) for r in await bus.backlog()] == [TargetsSet]


async def test_pulses_and_disconnects_are_told(endpoint: Endpoint) -> None:
    told: list[Told] = []

    def listen(state: Any, what: Told) -> Decision[Any]:
        told.append(what)
        return Decision(state)

    async with joined(endpoint) as bus, running(endpoint, listen, pulses=True, disconnects=True):
        await bus.publish("j", numbered(1))
        await bus.publish("k", numbered(1))
        pulse = NodePulse(node="n1")

        def has_pulse() -> bool:
            return any(t.job == "j" and t.event == pulse for t in told)

        while not has_pulse():
            await bus.beat("j", pulse)
            await asyncio.sleep(0.02)

        def jobs_told() -> set[str]:
            return {t.job for t in told if isinstance(t.event, Disconnected) and t.event.name == "w7"}

        while jobs_told() != {"j", "k"}:
            gone = await Bus.connect(endpoint, source="w7")
            client = gone.client_id
            await gone.close()
            await asyncio.sleep(0.05)
        assert client in {t.event.client_id for t in told if isinstance(t.event, Disconnected)}


async def test_actions_are_done_in_order_not_twice_and_their_errors_are_survived(endpoint: Endpoint) -> None:
    done: list[tuple[str, int]] = []

    @dataclasses.dataclass(frozen=True)
    class Write:
        number: int

    def ask(state: Any, told: Told) -> Decision[Any]:
        if isinstance(told.event, JobScaled):
            state = (*state, told.event.workers)
        return Decision(state, do=tuple(Write(n) for n in state)) if len(done) < 30 else Decision(state)

    async def act(bus: Bus, job: str, action: Write) -> None:
        await asyncio.sleep(0.01)
        done.append((job, action.number))
        if action.number == 2:
            raise OSError("no space")

    async with joined(endpoint) as bus, running(endpoint, ask, act=act) as runner:
        for n in (1, 2, 3):
            await bus.publish("j", numbered(n))
        await until(lambda: len(done) >= 30, "many actions")
        assert runner._jobs["j"].actions.qsize() <= 3
        assert {number for _, number in done} == {1, 2, 3}


async def test_a_finished_job_gets_no_ticks_after_a_while(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reknit.core.service._TICKS_AFTER_END", 0.1)
    ticks: list[str] = []

    def listen(state: Any, told: Told) -> Decision[Any]:
        if isinstance(told.event, Tick):
            ticks.append(told.job)
        return Decision(state)

    async with joined(endpoint) as bus, running(endpoint, listen):
        await bus.publish("over", numbered(1))
        await bus.publish("runs", numbered(1))
        await until(lambda: {"over", "runs"} <= set(ticks), "ticks of both")
        await bus.publish("over", JobFinished(run="r", outcome="completed"))
        await bus.publish("over", numbered(2))
        await asyncio.sleep(0.3)
        ticks.clear()
        await until(lambda: len(ticks) > 5, "ticks")
        assert set(ticks) == {"runs"}


async def test_a_decision_is_a_span_between_its_cause_and_what_it_publishes(broker: Broker, tmp_path: Path) -> None:
    service = start_service(broker.endpoint, **{telemetry.TRACE_DIR: str(tmp_path)})
    try:
        async with joined(broker.endpoint) as bus:
            heard: list[Received] = []
            await bus.follow(heard.append)
            await bus.publish("j", numbered(1))
            await until(lambda: generations(heard) == [1], "the world")
            world = heard[-1]
            (file,) = tmp_path.glob("reknit-membership-*.jsonl")
            await until(lambda: file.read_text().endswith("\n"), "the span")
            span = json.loads(file.read_text().splitlines()[0])
            assert span["name"] == "membership.decide"
            assert world.trace.startswith(f"00-{span['trace']}-{span['span']}-")
            assert span["attributes"]["reknit.reason"] == "number 1 was heard"
            assert span["attributes"]["reknit.kind"] == "world.changed"
            assert numbers(heard) == [1]
    finally:
        service.terminate()
        service.communicate(timeout=30)
