"""Three brokers that are a cluster: the one that leads the log is killed, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.events import JobSubmitted, WorkerExited, WorldChanged
from reknit.core.registry_entry import Entry
from support.buses import joined, numbered, numbers, until
from support.clusters import Cluster
from support.service_process import ServiceProcess, ready
from support.stand_ins import Agent

pytestmark = pytest.mark.slow  # an election takes 4 to 9 s


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


async def test_killing_the_leader_loses_and_doubles_nothing(cluster: Cluster) -> None:
    async with joined(cluster.endpoint, "speaker", 60.0) as speaker, joined(cluster.endpoint, "hearer") as hearer:
        info = await cluster.info()
        assert info["config"]["num_replicas"] == 3
        heard: list = []
        await hearer.follow(heard.append, job="job")
        count, slowest = 0, 0.0
        killed: list[int] = []

        async def speak() -> None:
            nonlocal count, slowest
            while len(killed) < 2 or count % 50:
                began = time.monotonic()
                await speaker.publish("job", numbered(count), deadline=90.0)
                slowest = max(slowest, time.monotonic() - began)
                count += 1

        speaking = asyncio.create_task(speak())
        try:
            for _ in range(2):
                before = count
                await until(lambda before=before: count >= before + 100, "a hundred events", 90.0)
                leader = await cluster.leader()
                cluster.kill(leader)
                before = count
                await until(lambda before=before: count >= before + 100, "another hundred after the election", 90.0)
                cluster.start(leader)
                killed.append(leader)
            await asyncio.wait_for(speaking, 90.0)
        finally:
            speaking.cancel()
        await until(lambda: len(heard) >= count, "all events at the hearer")
        assert numbers(heard) == list(range(count))
        assert [r.event.workers for r in await hearer.backlog(job="job")] == list(range(count))
        print(f"{count} events, leader killed twice, slowest publication {slowest:.1f} s")


async def test_worlds_go_on_after_an_election_each_exactly_once(cluster: Cluster) -> None:
    end = cluster.endpoint
    async with joined(end, "test", 60.0) as bus:
        with (
            ServiceProcess("membership", end) as first,
            ServiceProcess("membership", end, REKNIT_INSTANCE="standby") as second,
            Agent(end, "a"),
            Agent(end, "b") as b,
            Agent(end, "c"),
        ):
            await ready(bus, "membership", first.pid)
            await ready(bus, "membership-standby", second.pid)
            heard: list = []
            await bus.follow(heard.append, job="j")
            spec = JobSubmitted(run="r1", script="t.py", min_nodes=1, max_nodes=3, last_call=60.0)
            await bus.publish("j", spec)

            def worlds() -> list[WorldChanged]:
                return [r.event for r in heard if isinstance(r.event, WorldChanged)]

            def members() -> list[str]:
                return sorted(m.worker for m in worlds()[-1].members) if worlds() else []

            await until(lambda: members() == ["a-0", "b-0", "c-0"], "the first world", 60.0)
            await asyncio.sleep(1.0)  # a few heartbeats
            leader = await cluster.leader()
            began = time.monotonic()
            cluster.kill(leader)
            b.kill()
            await until(lambda: members() == ["a-0", "c-0"], "the world after the election", 90.0)
            print(f"leader and a node killed together -> world: {time.monotonic() - began:.1f} s")
            assert [w.generation for w in worlds()] == list(range(1, len(worlds()) + 1))
            assert worlds()[-1].removed == ("b-0",)
            assert not [r for r in heard if isinstance(r.event, WorkerExited) and r.event.node != "b"]


async def test_the_registry_and_the_lease_outlive_a_broker(cluster: Cluster) -> None:
    async with joined(cluster.endpoint, "test", 60.0) as bus:
        with ServiceProcess("membership", cluster.endpoint) as service:
            await ready(bus, "membership", service.pid)
            for bucket in ("KV_reknit", "KV_reknit-registry"):
                assert (await cluster.info(bucket))["config"]["num_replicas"] == 3
            cluster.kill(await cluster.leader("KV_reknit-registry"))
            deadline = time.monotonic() + 60.0
            while True:
                answer = await ready(bus, "membership", service.pid, 60.0)
                with contextlib.suppress(ControlPlaneUnreachable):
                    found = [s for s in await bus.registry.read() if s.entry.pid == service.pid]
                    if answer["acts"] and found and found[0].health == "passing":
                        break
                assert time.monotonic() < deadline, "it does not come back"
                await asyncio.sleep(0.2)


async def test_a_log_that_was_begun_on_two_brokers_grows_to_three_copies(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        await cluster.formed()
        cluster.kill(2)
        async with joined(cluster.endpoint, "one", 60.0) as bus:
            await bus.publish("job", numbered(1), deadline=60.0)
            few = (await cluster.info())["config"]["num_replicas"]
            cluster.start(2)
            deadline = time.monotonic() + 60.0
            while (await cluster.info())["config"]["num_replicas"] != 3:
                assert time.monotonic() < deadline, f"it stays at {few}"
                async with joined(cluster.endpoint, "two", 60.0):
                    pass
            assert [r.event.workers for r in await bus.backlog(job="job")] == [1]


async def test_replicas_that_were_asked_for_are_not_raised_by_others(cluster: Cluster) -> None:
    one = msgspec.structs.replace(cluster.endpoint, replicas=1)
    async with joined(one, "one", 60.0), joined(cluster.endpoint, "two", 60.0):
        assert (await cluster.info())["config"]["num_replicas"] == 1
    three = msgspec.structs.replace(cluster.endpoint, replicas=3)
    async with joined(three, "three", 60.0):
        assert (await cluster.info())["config"]["num_replicas"] == 3


async def test_the_registry_lies_on_as_many_brokers_as_was_asked_for(cluster: Cluster) -> None:
    two = msgspec.structs.replace(cluster.endpoint, replicas=2)
    async with joined(two, "two", 60.0) as bus:
        bus.registry.register("probe", _nobody)
        assert await _copies(cluster, 2) == 2
        async with joined(cluster.endpoint, "auto", 60.0) as other:
            await other.registry.grow()
            assert await _copies(cluster, 2) == 2, "who asks for nothing leaves it as it is"
    async with joined(msgspec.structs.replace(cluster.endpoint, replicas=3), "three", 60.0) as bus:
        bus.registry.register("probe2", _nobody)
        assert await _copies(cluster, 3) == 3


async def test_a_registry_that_was_begun_on_two_brokers_grows_to_three_copies(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        await cluster.formed()
        cluster.kill(2)
        async with joined(cluster.endpoint, "one", 60.0) as bus:
            bus.registry.register("probe", _nobody)
            await _copies(cluster, 0)
            cluster.start(2)
            deadline = time.monotonic() + 60.0
            while await _copies(cluster, 0) != 3:
                assert time.monotonic() < deadline, "it stays as it is"
                async with joined(cluster.endpoint, "two", 60.0) as other:
                    await other.registry.grow()


def _nobody() -> tuple[Entry, ...]:
    return (Entry(kind="service", name="probe", id="probe/1"),)


async def _copies(cluster: Cluster, wanted: int) -> int:
    """How many brokers hold the registry, once they are that many (0: once there is one)."""
    deadline = time.monotonic() + 60.0
    while True:
        found = int((await cluster.info("KV_reknit-registry"))["config"]["num_replicas"])
        if found == wanted or not wanted or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.1)
