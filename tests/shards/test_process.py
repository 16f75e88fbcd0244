"""The shards service as a process over a real broker."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from reknit.core.bus import Received
from reknit.core.context import Endpoint
from reknit.core.events import (
    EpochFinished,
    JobSubmitted,
    Range,
    ShardsPlanned,
    StepsCommitted,
    Terms,
    WorkerCaughtUp,
    WorkerLeaving,
)
from support.buses import joined, until
from support.history import member, registered, world
from support.service_process import ServiceProcess, ready

TERMS = Terms(slots=4, micro_batch=5, samples=100, epochs=2, seed=1)  # 5 steps an epoch
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def record(first: int, last: int, generation: int) -> StepsCommitted:
    ranges = (Range(worker="a", first=0, end=4),)
    return StepsCommitted(run="r1", first=first, last=last, generation=generation, ranges=ranges, slots=4)


async def test_killed_in_the_middle_of_a_history_it_goes_on_and_plans_nothing_twice(endpoint: Endpoint) -> None:
    heard: list[Received] = []
    async with joined(endpoint) as bus:
        await bus.follow(heard.append, job="j", areas=["shards"])

        def plans() -> list[tuple[int, int]]:
            return [(r.event.generation, r.event.version) for r in heard if isinstance(r.event, ShardsPlanned)]

        def epochs() -> list[int]:
            return [r.event.epoch for r in heard if isinstance(r.event, EpochFinished)]

        with ServiceProcess("shards", endpoint) as service:
            await bus.publish("j", JobSubmitted(run="r1", script="t.py"))
            for worker in "abc":
                await bus.publish("j", registered(worker, TERMS))
            await bus.publish("j", world(1, member("a"), member("b")))
            await until(lambda: plans() == [(1, 1)], "the first plan")
            service.kill()
            # what happens while nobody is there
            await bus.publish("j", record(0, 4, 1))
            await bus.publish("j", world(2, member("a"), member("b"), member("c")))
            await bus.publish("j", WorkerCaughtUp(worker="c", incarnation=1, generation=2, step=5))
            service.start()
            await until(lambda: epochs() == [0], "the epoch")
            await until(lambda: plans() == [(1, 1), (2, 1)], "the plan of the second world")
            assert [r.worker for r in plan_of(heard, 2, 1).ranges] == ["a", "b", "c"]
            for _ in range(3):
                service.kill()
                service.start()
                await ready(bus, "shards", service.pid)
            await bus.publish("j", WorkerLeaving(worker="b", incarnation=1))
            await until(lambda: (2, 2) in plans(), "the next version")
            await bus.publish("j", record(5, 9, 2))
            await until(lambda: epochs() == [0, 1], "the second epoch")
            assert plans() == [(1, 1), (2, 1), (2, 2)]
            assert service.terminate() == 0


def plan_of(heard: list[Received], generation: int, version: int) -> ShardsPlanned:
    for r in heard:
        if isinstance(r.event, ShardsPlanned) and (r.event.generation, r.event.version) == (generation, version):
            return r.event
    raise AssertionError("no such plan")


async def test_two_services_make_one_sequence_of_plans(endpoint: Endpoint) -> None:
    heard: list[Received] = []
    async with joined(endpoint) as bus:
        await bus.follow(heard.append, job="j", areas=["shards"])
        with ServiceProcess("shards", endpoint) as one, ServiceProcess("shards", endpoint) as two:
            await bus.publish("j", registered("a", TERMS))
            await bus.publish("j", registered("b", TERMS))
            for process in (one, two):
                await ready(bus, "shards", process.pid)
            for generation in range(1, 31):
                members = [member("a"), member("b")][: 1 + generation % 2]
                await bus.publish("j", world(generation, *members))
                await until(lambda g=generation: any(_is(r, g) for r in heard), "a plan")
        numbers = [(r.event.generation, r.event.version) for r in heard if isinstance(r.event, ShardsPlanned)]
        assert numbers == [(g, 1) for g in range(1, 31)]


def _is(received: Received, generation: int) -> bool:
    return isinstance(received.event, ShardsPlanned) and received.event.generation == generation


async def test_a_plan_is_a_span_of_the_trace_of_its_world_and_comes_in_a_moment(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    heard: list[tuple[float, Received]] = []
    async with joined(endpoint) as bus:
        await bus.follow(lambda r: heard.append((time.monotonic(), r)), job="j", areas=["world", "shards"])
        with ServiceProcess("shards", endpoint, REKNIT_TRACE_DIR=str(tmp_path / "traces")) as service:
            await ready(bus, "shards", service.pid)
            await bus.publish("j", registered("a", TERMS))
            for generation in range(1, 21):
                await bus.publish("j", world(generation, member("a")), trace=TRACE)
                await until(lambda g=generation: any(_is(r, g) for _, r in heard), "a plan")
            traces = [r.trace for _, r in heard if isinstance(r.event, ShardsPlanned)]
            assert all(t.startswith(TRACE[:35]) and t != TRACE for t in traces)
            assert service.terminate() == 0
    lines = [json.loads(line) for f in (tmp_path / "traces").iterdir() for line in f.read_text().splitlines()]
    spans = [s for s in lines if s["name"] == "shards.plan"]
    assert len(spans) == 20
    assert {(s["trace"], s["parent"]) for s in spans} == {(TRACE[3:35], TRACE[36:52])}
    times = {r.event.generation: [] for _, r in heard}
    for at, r in heard:
        times[r.event.generation].append(at)
    delays = sorted(plan - begin for begin, plan in times.values())
    print(f"world heard -> plan heard: median {statistics.median(delays) * 1e3:.1f} ms, max {delays[-1] * 1e3:.1f} ms")
