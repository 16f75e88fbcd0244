"""Typed events over the bus, against a real server."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from reknit.core import wire
from reknit.core.bus import Bus, Received
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable, ReknitError, StaleWorld, UsageError
from reknit.core.events import (
    Alert,
    AnyPulse,
    JobScaled,
    Member,
    NodePulse,
    WorkerPulse,
    WorkerStarted,
    WorldChanged,
)
from support.buses import Broker, PlainServer, joined, numbered, numbers, until

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def world(generation: int, reason: str = "") -> WorldChanged:
    return WorldChanged(generation=generation, run="r", status="running", reason=reason)


async def test_an_event_arrives_with_all_that_belongs_to_it(endpoint: Endpoint) -> None:
    async with joined(endpoint, "w1") as bus, joined(endpoint) as other:
        heard: list[Received] = []
        await other.follow(heard.append, job="j")
        event = WorkerStarted(worker="w", incarnation=1, node="n", pid=5)
        seq = await bus.publish("j", event, id="started/w/1", trace=TRACE)
        await until(lambda: heard, "the event")
        (got,) = heard
        assert (got.event, got.job, got.seq, got.id) == (event, "j", seq, "started/w/1")
        assert (got.source, got.trace) == ("w1", TRACE)
        assert got.time > 1.7e9
        assert await other.backlog() == heard


async def test_headers_are_cloud_events(endpoint: Endpoint) -> None:
    async with joined(endpoint, "w1") as bus:
        await bus.publish("j", numbered(1), id="x", trace=TRACE)
        stored = await bus._journal.last("reknit.j.job.scaled")
        assert stored is not None
        head = stored.headers
        assert (head["ce-id"], head["ce-source"], head["ce-type"]) == ("x", "w1", "job.scaled")
        assert head["ce-specversion"] == "1.0"
        assert head["ce-time"].endswith("+00:00")
        assert head["traceparent"] == TRACE


async def test_a_large_event_is_stored_small_and_arrives_whole(endpoint: Endpoint) -> None:
    members = tuple(
        Member(worker=f"n{i}-0", incarnation=1, node=f"n{i}", pid=i, address=f"10.0.0.{i}:1") for i in range(250)
    )
    event = WorldChanged(generation=1, run="r", status="running", members=members)
    async with joined(endpoint) as bus:
        heard: list[Received] = []
        await bus.follow(heard.append, job="j")
        await bus.publish("j", event)
        await until(lambda: heard, "the event")
        assert [heard[0].event] == [r.event for r in await bus.backlog()] == [event]
        stored = await bus._journal.last("reknit.j.world.changed")
        assert stored is not None
        assert len(stored.data) < len(wire.encode(event)) / 4


async def test_one_id_is_stored_once_but_only_within_its_kind_and_job(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:
        first = await bus.publish("j", numbered(1), id="same")
        assert await bus.publish("j", numbered(1), id="same") == first
        assert await other.publish("j", numbered(2), id="same") == first
        assert await bus.publish("k", numbered(1), id="same") == first + 1
        assert await bus.publish("j", world(1), id="same") == first + 2


async def test_of_twenty_that_propose_a_world_one_wins(endpoint: Endpoint) -> None:
    buses = [await Bus.connect(endpoint, source=f"m{n}") for n in range(20)]
    try:
        for generation in range(1, 4):
            before = await buses[0].last_world("j")
            results = await asyncio.gather(
                *(
                    bus.publish("j", world(generation, bus.source), expect_last=before.seq if before else 0)
                    for bus in buses
                ),
                return_exceptions=True,
            )
            won = [bus.source for bus, r in zip(buses, results, strict=True) if isinstance(r, int)]
            assert len(won) == 1
            assert sum(isinstance(r, StaleWorld) for r in results) == 19
            last = await buses[5].last_world("j")
            assert last is not None
            assert last.event == world(generation, won[0])
        heard: list[Received] = []
        await buses[0].follow(heard.append, areas=["world"])
        assert [r.event.generation for r in heard if isinstance(r.event, WorldChanged)] == [1, 2, 3]
    finally:
        for bus in buses:
            await bus.close()


async def test_a_live_follower_never_hears_a_refused_world(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        heard: list[Received] = []
        await bus.follow(heard.append)
        await bus.publish("j", world(1), expect_last=0)
        with pytest.raises(StaleWorld):
            await bus.publish("j", world(1, "late"), expect_last=0)
        await bus.publish("j", numbered(9))
        await until(lambda: len(heard) >= 2, "two events")
        assert [r.seq for r in heard] == [1, 2]


async def test_no_world_yet(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        assert await bus.last_world("j") is None
        assert await bus.backlog(job="j") == []


async def test_too_large_an_event_is_refused_by_name_and_does_not_block_the_outbox(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        noise = random.Random(0)  # which deflating makes no smaller than half
        text = noise.randbytes(9 << 20).hex()
        big = Alert(alert="a", subject="s", state="raised", severity="info", reason=text)
        with pytest.raises(ReknitError, match=r"bytes on reknit\.j\.monitor\.alert is larger than 8388608"):
            await bus.publish("j", big)
        bus.post("j", big)
        bus.post("j", numbered(1))
        assert await bus.flush(10.0)
        assert bus.dropped == {"refused": 1}
        assert numbers(await bus.backlog()) == [1]
        fits = Alert(alert="a", subject="s", state="raised", severity="info", reason=text[: 7 << 20])
        await bus.publish("j", fits)
        assert (await bus.backlog())[-1].event == fits


@pytest.mark.parametrize("job", ["", "a.b", "a b", "*", ">", "ä", "x" * 65, "-a"])
async def test_a_job_name_that_is_no_subject_token(endpoint: Endpoint, job: str) -> None:
    async with joined(endpoint) as bus:
        with pytest.raises(UsageError, match="not a valid name"):
            await bus.publish(job, numbered(1))
        with pytest.raises(UsageError):
            bus.post(job, numbered(1))
        if job != "*":
            with pytest.raises(UsageError):
                await bus.follow(lambda _: None, job=job)


async def test_areas_that_do_not_exist(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        for areas in (["wrold"], ["heartbeat"], []):
            with pytest.raises(UsageError):
                await bus.follow(lambda _: None, areas=areas)


async def test_unreadable_bytes_do_not_stop_a_follower(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    async with joined(endpoint) as bus:
        heard: list[Received] = []
        await bus.follow(heard.append)
        alien = wire.encode(world(1))
        bad = [b"", b"\xc1", b"\x93\x01\x02", b"\xff" * 100, wire.pack({"kind": "job.unheard-of"}), alien]
        for data in bad:
            await bus._connection.ask("reknit.j.job.scaled", data)
        await bus._connection.ask("reknit.j.job.scaled.too.long", wire.encode(numbered(1)))
        await bus.publish("j", numbered(1))
        await until(lambda: heard, "the good one")
        assert numbers(heard) == [1]
        assert bus.unreadable == {"reknit.j.job.scaled": len(bad), "reknit.j.job.scaled.too.long": 1}
        assert "subject=reknit.j.job.scaled " in capsys.readouterr().err
        assert numbers(await bus.backlog()) == [1]


async def test_a_callback_that_raises_hears_the_next_event(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        heard: list[Received] = []

        def fail(received: Received) -> None:
            heard.append(received)
            raise ValueError(received.seq)

        await bus.publish("j", numbered(1))
        await bus.follow(fail)
        await bus.publish("j", numbered(2))
        await until(lambda: numbers(heard) == [1, 2], "both")


async def test_heartbeats(endpoint: Endpoint) -> None:
    async with joined(endpoint, "w") as bus, joined(endpoint) as other:
        heard: list[tuple[str, AnyPulse]] = []
        await other.pulses(lambda job, pulse: heard.append((job, pulse)))
        only: list[tuple[str, AnyPulse]] = []
        await other.pulses(lambda job, pulse: only.append((job, pulse)), job="k")
        worker = WorkerPulse(worker="w1", incarnation=1, generation=2, step=3, committed=3, loss=float("nan"))
        node = NodePulse(node="n1", workers={"w1": "S"})
        await bus._connection.send("reknit.j.heartbeat.w1", b"junk")
        await bus.beat("j", worker)
        await bus.beat("k", node)
        await until(lambda: len(heard) == 2 and only, "both")
        assert [job for job, _ in heard] == ["j", "k"]
        assert isinstance(heard[0][1], WorkerPulse)
        assert heard[0][1].loss != heard[0][1].loss
        assert heard[1] == ("k", node) == only[0]
        assert other.unreadable == {"reknit.j.heartbeat.w1": 1}
        assert await other.backlog() == []


async def test_questions_and_answers(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:

        async def answer(question: bytes) -> bytes:
            if question == b"bad":
                raise ValueError("I do not know")
            await asyncio.sleep(0.05 if question == b"slow" else 0)
            return question.upper()

        with pytest.raises(ControlPlaneUnreachable, match="'monitor' does not answer") as raised:
            await other.request("monitor", "ping", timeout=0.2)
        assert "reknit service monitor" in raised.value.hint
        await bus.serve("monitor", "ping", answer)
        slow = asyncio.create_task(other.request("monitor", "ping", b"slow"))
        assert await other.request("monitor", "ping", b"fast") == b"FAST"
        assert not slow.done()  # a slow answer does not hold up others
        assert await slow == b"SLOW"
        with pytest.raises(ControlPlaneUnreachable, match="failed to answer 'ping': ValueError: I do not know"):
            await other.request("monitor", "ping", b"bad")


async def test_a_question_before_the_service_is_there_waits_for_it(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:

        async def answer(question: bytes) -> bytes:
            return b"here"

        asking = asyncio.create_task(other.request("shards", "ping", timeout=20.0))
        await asyncio.sleep(0.2)
        assert not asking.done()
        await bus.serve("shards", "ping", answer)
        assert await asking == b"here"


async def test_of_two_services_one_answers(endpoint: Endpoint) -> None:
    async with joined(endpoint) as one, joined(endpoint) as two, joined(endpoint) as asker:
        answered: list[int] = []

        def counting(number: int):  # type: ignore[no-untyped-def]
            async def answer(_: bytes) -> bytes:
                answered.append(number)
                return b""

            return answer

        await one.serve("x", "ping", counting(1))
        await two.serve("x", "ping", counting(2))
        for _ in range(20):
            await asker.request("x", "ping")
        assert len(answered) == 20
        assert set(answered) == {1, 2}


async def test_the_end_of_a_connection_is_told_also_after_a_restart_of_the_broker(broker: Broker) -> None:
    async with joined(broker.endpoint) as bus:
        ends: list[tuple[int, str]] = []
        assert await bus.disconnects(lambda client, name: ends.append((client, name)))
        gone = await Bus.connect(broker.endpoint, source="w7")
        told = (gone.client_id, "w7")
        await gone.close()
        await until(lambda: told in ends, "the notice")
        assert bus._news._system is not None
        back: list[int] = []
        bus._news._system.on_back.append(lambda: back.append(1))
        broker.kill()
        broker.start()
        await until(lambda: back, "the system connection")
        gone = await Bus.connect(broker.endpoint, source="w8")
        await gone.close()
        await until(lambda: "w8" in [name for _, name in ends], "the notice after the restart")


async def test_a_broker_without_a_system_account(tmp_path: Path) -> None:
    """Somebody else's NATS: only a URL and credentials; everything works but disconnect notices."""

    def plain(config: dict) -> None:  # type: ignore[type-arg]
        user = config.pop("accounts")["REKNIT"]["users"][0]
        config.pop("system_account")
        config["authorization"] = {"users": [user]}

    broker = PlainServer(tmp_path, plain)
    try:
        end = broker.start()
        url = end.url.replace("nats://", f"nats://{end.user}:{end.password}@")
        async with joined(Endpoint(url=url)) as bus:
            assert not await bus.disconnects(lambda *_: None)
            await bus.publish("j", numbered(1))
            assert numbers(await bus.backlog()) == [1]
        wrong = Endpoint(url=end.url, user=end.user, password=end.password, system_user="system", system_password="x")
        async with joined(wrong) as bus:
            assert not await bus.disconnects(lambda *_: None)
    finally:
        broker.stop()


async def test_a_full_outbox_refuses_and_counts(broker: Broker) -> None:
    async with joined(broker.endpoint) as bus:
        bus._outbox._capacity = 10
        broker.kill()
        for n in range(13):
            bus.post("j", numbered(n))
        assert bus.unsent == 10
        assert bus.dropped == {"full": 3}
        assert not await bus.flush(0.05)
        broker.start()
        assert await bus.flush(20.0)
        assert numbers(await bus.backlog()) == list(range(10))


async def test_closing_leaves_nothing_running(endpoint: Endpoint) -> None:
    bus = await Bus.connect(endpoint, source="t")
    await bus.follow(lambda _: None)
    await bus.disconnects(lambda *_: None)

    async def answer(question: bytes) -> bytes:
        await asyncio.sleep(100)
        return question

    await bus.serve("x", "y", answer)
    asking = asyncio.create_task(bus.request("x", "y", timeout=100))
    await until(lambda: bus._answers._tasks, "the question")
    await bus.close()
    with pytest.raises(ControlPlaneUnreachable):
        await asking
    with pytest.raises(ControlPlaneUnreachable):
        await bus.publish("j", JobScaled(workers=1), deadline=5.0)
    await bus.close()
    await until(lambda: len(asyncio.all_tasks()) == 1, "the end of all tasks")


async def test_reading_waits_for_a_broker_that_comes_back(broker: Broker) -> None:
    async with joined(broker.endpoint) as bus:
        await bus.publish("j", world(1))
        broker.kill()
        with pytest.raises(ControlPlaneUnreachable):
            await bus.backlog(deadline=0.2)
        reading = asyncio.create_task(bus.backlog(deadline=30.0))
        looking = asyncio.create_task(bus.last_world("j", deadline=30.0))
        await asyncio.sleep(0.1)
        broker.start()
        assert (await reading)[0] == await looking


async def test_an_unreadable_message_on_the_world_log_blocks_nothing(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        first = await bus.publish("j", world(1), expect_last=0)
        for _ in range(3):
            await bus._connection.ask("reknit.j.world.changed", b"\xc1\xff\x00junk")
        second = await bus.publish("j", world(2), expect_last=first)
        assert second == first + 4
        with pytest.raises(StaleWorld):
            await bus.publish("j", world(2), expect_last=first)
        await bus._connection.ask("reknit.j.world.changed", b"\xc1")
        with pytest.raises(StaleWorld):  # somebody's world lies between: that one wins, whatever came after it
            await bus.publish("j", world(2), expect_last=first)
        await bus.publish("j", world(3), expect_last=second)
