"""Two membership services as processes: one acts, the other decides along and takes over in milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from reknit.core.bus import Bus
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.events import AgentJoined, JobSubmitted, NodeHeld, WorldChanged
from reknit.core.lease import TTL
from support.buses import joined, until
from support.service_process import ServiceProcess, ready
from support.stand_ins import Agent

NAMES = ("membership", "membership-standby")


@contextlib.contextmanager
def two(endpoint: Endpoint) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    with (
        ServiceProcess("membership", endpoint) as first,
        ServiceProcess("membership", endpoint, REKNIT_INSTANCE="standby") as second,
    ):
        yield first, second


async def acts(bus: Bus, name: str) -> bool:
    try:
        return bool(json.loads(await bus.request(name, "ping", timeout=0.5))["acts"])
    except ControlPlaneUnreachable:
        return False


async def who_acts(bus: Bus) -> str:
    """Name of the one that acts, once exactly one does."""
    async with asyncio.timeout(30.0):
        while True:
            found = [name for name in NAMES if await acts(bus, name)]
            if len(found) == 1:
                return found[0]
            await asyncio.sleep(0.02)


class Heard:
    def __init__(self) -> None:
        self.received: list = []
        self.at: list[float] = []

    def __call__(self, received: object) -> None:
        self.received.append(received)
        self.at.append(time.monotonic())

    @property
    def worlds(self) -> list[WorldChanged]:
        return [r.event for r in self.received if isinstance(r.event, WorldChanged)]

    def members(self) -> list[str]:
        return sorted(m.worker for m in self.worlds[-1].members) if self.worlds else []


@contextlib.asynccontextmanager
async def job(endpoint: Endpoint) -> AsyncIterator[tuple[Bus, Heard]]:
    async with joined(endpoint) as bus:
        heard = Heard()
        await bus.follow(heard, job="j")
        spec = JobSubmitted(run="r1", script="t.py", min_nodes=1, max_nodes=3, max_restarts=1000, last_call=60.0)
        await bus.publish("j", spec)
        yield bus, heard


async def test_the_one_that_acts_is_killed_while_a_worker_dies(
    endpoint: Endpoint, record_property: pytest.RecordProperty
) -> None:
    """Exactly one world follows, by the one that stood by."""
    with two(endpoint) as services, Agent(endpoint, "a"), Agent(endpoint, "b"), Agent(endpoint, "c"):
        async with job(endpoint) as (bus, heard):
            for name, service in zip(NAMES, services, strict=True):
                await ready(bus, name, service.pid)
            await until(lambda: heard.members() == ["a-0", "b-0", "c-0"], "the first world")
            await asyncio.sleep(0.6)
            active = await who_acts(bus)
            assert f"-{services[NAMES.index(active)].pid}-" in heard.worlds[-1].decided_by
            worlds = len(heard.worlds)
            victim = next(m.pid for m in heard.worlds[-1].members if m.worker == "b-0")
            began = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            services[NAMES.index(active)].kill()
            await until(lambda: heard.members() == ["a-0", "c-0"], "the world of the standby")
            took = heard.at[-1] - began
            record_property("takeover_to_world_ms", round(took * 1000))
            print(f"service and worker killed together -> world of the standby: {took * 1000:.0f} ms")
            other = services[1 - NAMES.index(active)]
            assert f"-{other.pid}-" in heard.worlds[-1].decided_by
            assert await acts(bus, NAMES[1 - NAMES.index(active)])
            await asyncio.sleep(1.0)
            assert len(heard.worlds) == worlds + 1
            assert [w.generation for w in heard.worlds] == list(range(1, worlds + 2))
            # started again it stands by
            services[NAMES.index(active)].start()
            await ready(bus, active, services[NAMES.index(active)].pid)
            assert await who_acts(bus) == NAMES[1 - NAMES.index(active)]


async def test_one_that_stands_still_is_replaced_and_does_no_harm_when_it_goes_on(endpoint: Endpoint) -> None:
    with two(endpoint) as services, Agent(endpoint, "a"), Agent(endpoint, "b"), Agent(endpoint, "c"):
        async with job(endpoint) as (bus, heard):
            for name, service in zip(NAMES, services, strict=True):
                await ready(bus, name, service.pid)
            await until(lambda: heard.members() == ["a-0", "b-0", "c-0"], "the first world")
            await asyncio.sleep(0.6)
            active = await who_acts(bus)
            stopped = services[NAMES.index(active)]
            os.kill(stopped.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                os.kill(next(m.pid for m in heard.worlds[-1].members if m.worker == "b-0"), signal.SIGKILL)
                await until(lambda: heard.members() == ["a-0", "c-0"], "the world of the standby")
                print(f"the one that acts stands still -> world of the standby: {time.monotonic() - began:.1f} s")
            finally:
                os.kill(stopped.pid, signal.SIGCONT)
            await asyncio.sleep(TTL)
            assert await who_acts(bus) != active
            assert [w.generation for w in heard.worlds] == list(range(1, len(heard.worlds) + 1))
            assert heard.members() == ["a-0", "c-0"]


async def test_a_node_that_flaps_is_held_down_and_both_services_say_it_once(endpoint: Endpoint) -> None:
    with two(endpoint), Agent(endpoint, "a"):
        async with job(endpoint) as (_, heard):
            for round_ in range(5):
                with Agent(endpoint, "b", incarnation=round_ + 1):
                    comings = round_ + 1
                    await until(
                        lambda comings=comings: (
                            comings
                            <= sum(isinstance(r.event, AgentJoined) and r.event.node == "b" for r in heard.received)
                        ),
                        "its coming",
                    )
            held = [r.event for r in heard.received if isinstance(r.event, NodeHeld)]

            def said() -> list[NodeHeld]:
                return [r.event for r in heard.received if isinstance(r.event, NodeHeld)]

            await until(lambda: bool(said()), "the hold-down")
            await asyncio.sleep(0.5)
            held = said()
            assert {(e.node, e.cause) for e in held} == {("b", "flapping")}
            assert len({e.until for e in held}) == len(held), "once each"
            assert abs(held[-1].until - time.time() - held[-1].seconds) < 30.0, "by the broker's clock, which is ours"
            assert "b-0" not in heard.members()
