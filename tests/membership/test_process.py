"""The service as a process: real broker, real workers and agents to kill, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from reknit.core.bus import Bus, Received
from reknit.core.context import Endpoint
from reknit.core.events import (
    AgentJoined,
    JobFinished,
    JobScaled,
    JobSubmitted,
    Member,
    StepsCommitted,
    TargetsSet,
    WorkerCaughtUp,
    WorkerExited,
    WorkerFinished,
    WorkerRegistered,
    WorkerStarted,
    WorldChanged,
)
from support.buses import Broker, joined, until
from support.service_process import ServiceProcess, ready
from support.stand_ins import TERMS, Agent


class Log:
    """What a client hears of the job."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.received: list[Received] = []
        self.at: dict[int, float] = {}

    def hear(self, received: Received) -> None:
        self.received.append(received)
        if isinstance(received.event, WorldChanged):
            self.at[received.event.generation] = time.monotonic()

    @property
    def worlds(self) -> list[WorldChanged]:
        return [r.event for r in self.received if isinstance(r.event, WorldChanged)]

    def members(self) -> list[str]:
        return [m.worker for m in self.worlds[-1].members] if self.worlds else []

    def pid(self, worker: str) -> int:
        return next(m.pid for m in self.worlds[-1].members if m.worker == worker)


@contextlib.asynccontextmanager
async def job(endpoint: Endpoint, **spec: float) -> AsyncIterator[Log]:
    """A bus with a submitted job of three nodes at most."""
    async with joined(endpoint) as bus:
        log = Log(bus)
        await bus.follow(log.hear, job="j")
        values = {"min_nodes": 1, "max_nodes": 3, "max_restarts": 10_000, "last_call": 0.5, **spec}
        await bus.publish("j", JobSubmitted(run="r1", script="t.py", **values))
        yield log


def consistent(log: Log) -> None:
    """One sequence of worlds, each after the one before."""
    assert [w.generation for w in log.worlds] == list(range(1, len(log.worlds) + 1))


async def let_in(log: Log, name: str, incarnation: int = 1, *, learns: bool = True) -> None:
    """Register a worker that exists on paper only; once there is a ring it says that it has caught up."""
    node, _, index = name.rpartition("-")
    port = 20_000 + incarnation * 100 + (ord(node) - ord("a")) * 4 + int(index)
    await log.bus.publish("j", WorkerStarted(worker=name, incarnation=incarnation, node=node, pid=incarnation))
    registered = WorkerRegistered(
        worker=name,
        incarnation=incarnation,
        node=node,
        run="r1",
        pid=incarnation,
        address=f"127.0.0.1:{port}",
        terms=TERMS,
    )
    await log.bus.publish("j", registered)
    if learns and log.worlds:
        await caught_up(log, name, incarnation)


async def caught_up(log: Log, name: str, incarnation: int = 1) -> None:
    generation = log.worlds[-1].generation
    event = WorkerCaughtUp(worker=name, incarnation=incarnation, generation=generation, step=4)
    await log.bus.publish("j", event)


async def exited(log: Log, name: str, incarnation: int = 1) -> None:
    node = name.rpartition("-")[0]
    event = WorkerExited(worker=name, incarnation=incarnation, node=node, pid=incarnation, code=-9)
    await log.bus.publish("j", event)


async def paper_ring(log: Log, *names: str) -> None:
    """A ring of workers on paper that has committed steps."""
    for name in names:
        await let_in(log, name)
    await until(lambda: set(log.members()) == set(names), "the first world")
    await log.bus.publish("j", StepsCommitted(run="r1", first=0, last=3, generation=1, ranges=(), slots=8))


async def test_from_an_exit_to_the_next_world(endpoint: Endpoint, record_property: pytest.RecordProperty) -> None:
    """Measures; the limit only catches that the decision waits for a tick (100 ms) or worse."""
    took = []
    with ServiceProcess("membership", endpoint):
        async with job(endpoint, nproc_per_node=4) as log:
            await paper_ring(
                log, *(f"n-{i}" for i in range(4)), *(f"m-{i}" for i in range(4)), *("k-0", "k-1", "k-2", "k-3")
            )
            for incarnation in range(1, 9):
                begin = time.monotonic()
                await exited(log, "n-1", incarnation)
                await until(lambda: "n-1" not in log.members(), "the death")
                took.append(log.at[log.worlds[-1].generation] - begin)
                await let_in(log, "n-1", incarnation + 1)
                await until(lambda: "n-1" in log.members(), "the return")
            consistent(log)
    took.sort()
    median, worst = statistics.median(took) * 1000, took[-1] * 1000
    record_property("exit_to_world_ms", f"p50 {median:.1f} max {worst:.1f}")
    print(f"exit -> world heard: p50 {median:.1f} ms, max {worst:.1f} ms over {len(took)}")
    assert median < 50


async def test_a_killed_worker_is_found_without_any_word_of_an_agent(endpoint: Endpoint) -> None:
    """SIGKILL to a real process whose agent is stopped: the broker's notice, a refused dial."""
    with ServiceProcess("membership", endpoint), Agent(endpoint, "a") as a, Agent(endpoint, "b"):
        async with job(endpoint, max_nodes=2, last_call=60.0) as log:
            await until(lambda: sorted(log.members()) == ["a-0", "b-0"], "the first world")
            os.kill(a._process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
            begin = time.monotonic()
            os.kill(log.pid("a-0"), signal.SIGKILL)
            await until(lambda: log.members() == ["b-0"], "the death")
            print(f"SIGKILL -> world without the agent's word: {(time.monotonic() - begin) * 1000:.0f} ms")
            os.kill(a._process.pid, signal.SIGCONT)  # type: ignore[union-attr]
            assert {e.source for e in log.worlds[-1].evidence} >= {"refused"}
            consistent(log)


async def test_a_killed_agent_takes_its_workers_along_in_one_change(endpoint: Endpoint) -> None:
    with ServiceProcess("membership", endpoint), Agent(endpoint, "a"), Agent(endpoint, "b", 3) as b:
        async with job(endpoint, max_nodes=2, nproc_per_node=2, last_call=60.0) as log:
            await until(lambda: sorted(log.members()) == ["a-0", "b-0", "b-1", "b-2"], "the first world")
            worlds, begin = len(log.worlds), time.monotonic()
            b.kill()
            await until(lambda: log.members() == ["a-0"], "the loss of the node")
            print(f"SIGKILL of agent -> world: {(time.monotonic() - begin) * 1000:.0f} ms")
            assert log.worlds[-1].restarts == 0
            assert len(log.worlds) - worlds <= 2, "workers of one node are not taken out one by one"
            consistent(log)


async def test_a_stopped_worker_is_out_and_comes_back_when_it_goes_on(endpoint: Endpoint) -> None:
    with ServiceProcess("membership", endpoint), Agent(endpoint, "a"), Agent(endpoint, "b"):
        async with job(endpoint, max_nodes=2) as log:
            await until(lambda: sorted(log.members()) == ["a-0", "b-0"], "the first world")
            await asyncio.sleep(1.0)  # a few heartbeats, so that silence is a surprise
            pid, begin = log.pid("b-0"), time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: log.members() == ["a-0"], "the eviction")
            print(f"SIGSTOP -> world: {time.monotonic() - begin:.2f} s")
            assert {e.source for e in log.worlds[-1].evidence} == {"heartbeat", "frozen"}
            os.kill(pid, signal.SIGCONT)
            await until(lambda: log.members() == ["a-0", "b-0"], "the return")
            assert [m.incarnation for m in log.worlds[-1].members] == [1, 2]
            assert log.worlds[-1].restarts == 0
            consistent(log)


async def test_an_outage_of_the_broker_evicts_nobody_and_deaths_in_it_are_found(
    broker: Broker, endpoint: Endpoint
) -> None:
    with ServiceProcess("membership", endpoint), Agent(endpoint, "a"), Agent(endpoint, "b"), Agent(endpoint, "c"):
        async with job(endpoint, last_call=60.0) as log:
            await until(lambda: len(log.members()) == 3, "the first world")
            await asyncio.sleep(1.0)
            victim = log.pid("c-0")
            broker.kill()
            await asyncio.sleep(2.5)
            broker.start()
            await until(lambda: log.bus.connected, "the broker's return")
            await asyncio.sleep(3.0)
            assert sorted(log.members()) == ["a-0", "b-0", "c-0"]
            assert len(log.worlds) == 1
            broker.kill()
            os.kill(victim, signal.SIGKILL)
            await asyncio.sleep(0.5)
            broker.start()
            await until(lambda: sorted(log.members()) == ["a-0", "b-0"], "the death in the outage")
            await asyncio.sleep(2.0)
            assert len(log.worlds) == 2
            consistent(log)


@pytest.mark.slow
async def test_a_stopped_broker_evicts_nobody(broker: Broker, endpoint: Endpoint) -> None:
    """Resumed, it throws out clients that did not answer its pings: all of them are dialled and all answer."""
    with ServiceProcess("membership", endpoint), Agent(endpoint, "a"), Agent(endpoint, "b"):
        async with job(endpoint, max_nodes=2) as log:
            await until(lambda: len(log.members()) == 2, "the first world")
            await asyncio.sleep(1.0)
            assert broker.pid is not None
            os.kill(broker.pid, signal.SIGSTOP)
            await asyncio.sleep(5.0)
            os.kill(broker.pid, signal.SIGCONT)
            await asyncio.sleep(4.0)
            assert len(log.worlds) == 1


async def test_killed_and_started_again_it_goes_on_where_the_log_is(endpoint: Endpoint) -> None:
    with ServiceProcess("membership", endpoint) as service:
        async with job(endpoint) as log:
            await paper_ring(log, "a-0", "b-0", "c-0")
            service.kill()
            await exited(log, "b-0")
            await let_in(log, "b-0", 2)
            await exited(log, "c-0")
            service.start()
            await until(lambda: sorted(log.members()) == ["a-0", "b-0"], "what happened meanwhile")
            assert len(log.worlds) == 2, "all of it is one change"
            assert log.worlds[-1].restarts == 2
            for round_ in range(3):
                await exited(log, "b-0", round_ + 2)
                service.kill()
                service.start()
                await until(lambda: log.members() == ["a-0"], "the death")
                await let_in(log, "b-0", round_ + 3)
                await until(lambda: sorted(log.members()) == ["a-0", "b-0"], "the return")
            consistent(log)
            assert len(log.worlds) == 8


async def test_newcomers_come_in_once_they_have_caught_up_whoever_was_killed_meanwhile(endpoint: Endpoint) -> None:
    with ServiceProcess("membership", endpoint) as service:
        async with job(endpoint) as log:
            await paper_ring(log, "a-0")
            await let_in(log, "b-0", learns=False)
            await let_in(log, "c-0", learns=False)
            service.kill()
            await exited(log, "c-0")
            await caught_up(log, "b-0")
            await caught_up(log, "c-0")  # late words of the dead
            service.start()
            await until(lambda: log.members() == ["a-0", "b-0"], "the one that has caught up")
            assert [w.planned for w in log.worlds] == [False, True]
            await let_in(log, "c-0", 2, learns=False)
            service.kill()
            service.start()
            await ready(log.bus, "membership", service.pid)
            await exited(log, "b-0")
            await until(lambda: log.members() == ["a-0"], "the death")
            assert "c-0 still learns" in log.worlds[-1].reason
            await caught_up(log, "c-0", 2)
            await until(lambda: log.members() == ["a-0", "c-0"], "the other one")
            assert [w.planned for w in log.worlds] == [False, True, False, True]
            consistent(log)


async def test_another_number_of_workers_is_told_to_the_nodes_without_a_world(endpoint: Endpoint) -> None:
    def said() -> list[dict[str, int]]:
        return [r.event.targets for r in log.received if isinstance(r.event, TargetsSet)]

    with ServiceProcess("membership", endpoint), ServiceProcess("membership", endpoint):
        async with job(endpoint) as log:
            for node in "ab":
                await log.bus.publish("j", AgentJoined(node=node, run="r1", host="h", pid=1, nproc=1))
            await paper_ring(log, "a-0", "b-0")
            for number in (4, 4, 3):
                await log.bus.publish("j", JobScaled(workers=number))
            await until(lambda: bool(said()) and said()[-1] == {"a": 2, "b": 1}, "the last number")
            await let_in(log, "a-1")
            await until(lambda: len(log.members()) == 3, "the third worker")
            assert [len(w.members) for w in log.worlds] == [2, 3]
            assert said() in ([{"a": 2, "b": 2}, {"a": 2, "b": 1}], [{"a": 2, "b": 1}])


async def test_two_services_make_one_sequence_of_worlds(endpoint: Endpoint) -> None:
    names = [f"{n}-{i}" for n in "abc" for i in range(2)]
    with ServiceProcess("membership", endpoint) as one, ServiceProcess("membership", endpoint):
        async with job(endpoint, nproc_per_node=2) as log:
            await paper_ring(log, *names)
            for round_ in range(1, 8):
                for name in names[1:4]:
                    await exited(log, name, round_)
                await until(lambda: len(log.members()) == 3, "the deaths")
                if round_ == 3:
                    one.kill()
                if round_ == 5:
                    one.start()
                for name in names[1:4]:
                    await let_in(log, name, round_ + 1)
                await until(lambda: len(log.members()) == 6, "the returns")
            consistent(log)
            removed = [name for w in log.worlds for name in w.removed]
            assert sorted(removed) == sorted(names[1:4] * 7), "every death is taken out exactly once"
            assert len({w.decided_by for w in log.worlds}) >= 1


async def test_a_world_of_somebody_else_is_taken_for_what_it_is(endpoint: Endpoint) -> None:
    with ServiceProcess("membership", endpoint):
        async with job(endpoint) as log:
            await paper_ring(log, "a-0", "b-0")
            other = WorldChanged(
                generation=2,
                run="r1",
                status="running",
                members=(log.worlds[-1].members[1], log.worlds[-1].members[0]),
                reason="by hand",
                decided_by="somebody",
            )
            seq = next(r.seq for r in log.received if isinstance(r.event, WorldChanged))
            await log.bus.publish("j", other, expect_last=seq)
            await exited(log, "a-0")
            await until(lambda: log.members() == ["b-0"], "the death")
            consistent(log)


async def test_the_verdict_is_a_span_between_the_evidence_and_the_world(tmp_path: Path, endpoint: Endpoint) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with ServiceProcess("membership", endpoint, REKNIT_TRACE_DIR=str(tmp_path / "traces")) as service:
        async with job(endpoint) as log:
            await ready(log.bus, "membership", service.pid)
            await paper_ring(log, "a-0", "b-0")
            event = WorkerExited(worker="b-0", incarnation=1, node="b", pid=1, code=-9)
            await log.bus.publish("j", event, trace=trace)
            await until(lambda: log.members() == ["a-0"], "the death")
            world = log.received[-1]
            assert world.trace.split("-")[1] == trace.split("-")[1]
            assert world.trace.split("-")[2] != trace.split("-")[2]
            assert service.terminate() == 0
    spans = [
        json.loads(line) for file in (tmp_path / "traces").glob("*.jsonl") for line in file.read_text().splitlines()
    ]
    mine = [s for s in spans if s["trace"] == trace.split("-")[1]]
    assert [(s["name"], s["parent"]) for s in mine] == [("membership.verdict", trace.split("-")[2])]
    assert mine[0]["span"] == world.trace.split("-")[2]


async def test_bad_news_about_one_job_does_not_touch_another(endpoint: Endpoint) -> None:
    with ServiceProcess("membership", endpoint) as service:
        async with job(endpoint) as log:
            await log.bus.publish("other", WorkerExited(worker="x", incarnation=1, node="y", pid=1, code=1))
            nobody = Member(worker="x", incarnation=1, node="y", pid=1, address="nowhere")
            strange = WorldChanged(generation=7, run="?", status="running", members=(nobody, nobody))
            await log.bus.publish("other", strange)
            await log.bus.publish("other", AgentJoined(node="y", run="?", host="h", pid=1, nproc=1))
            await paper_ring(log, "a-0", "b-0")
            answer = await ready(log.bus, "membership", service.pid)
            assert answer["errors"] == 0
            assert service.terminate() == 0


async def test_a_run_ends_once_also_with_two_services(endpoint: Endpoint) -> None:
    with ServiceProcess("membership", endpoint), ServiceProcess("membership", endpoint):
        async with job(endpoint) as log:
            await paper_ring(log, "a-0", "b-0")
            for name in ("a-0", "b-0"):
                await log.bus.publish("j", WorkerFinished(worker=name, incarnation=1, generation=1, step=10))
            await until(lambda: log.worlds[-1].status == "finished", "the last world")
            await asyncio.sleep(0.5)
            assert len([r for r in log.received if isinstance(r.event, JobFinished)]) == 1
            consistent(log)
            assert len(log.worlds) == 2
