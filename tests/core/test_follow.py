"""Following: every event once and in order, whatever is dropped, cut or started again."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from reknit.core import follow as follow_module
from reknit.core import listener as listener_module
from reknit.core import wire
from reknit.core.bus import Bus, Received
from reknit.core.context import Endpoint
from reknit.core.events import Event, RingBroken, WorkerStarted, WorldChanged
from support.buses import Broker, PlainServer, joined, numbered, numbers, until
from support.proxy import Proxy


def through(endpoint: Endpoint, proxy: Proxy) -> Endpoint:
    return Endpoint(url=f"nats://127.0.0.1:{proxy.port}", user=endpoint.user, password=endpoint.password)


def port_of(endpoint: Endpoint) -> int:
    return int(endpoint.url.rpartition(":")[2])


async def fill(bus: Bus, count: int, job: str = "j") -> None:
    """Store many events fast: not one by one."""
    before = (await bus._journal.ensure(time.monotonic() + 10)).last
    for n in range(count):
        await bus._connection.send(f"reknit.{job}.job.scaled", wire.encode(numbered(n)))
    while (await bus._journal.ensure(time.monotonic() + 10)).last < before + count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_old_ones_first_then_new_ones(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:
        for n in range(5):
            await bus.publish("j", numbered(n))
        heard: list[Received] = []
        follow = await other.follow(heard.append)
        assert numbers(heard) == list(range(5))
        for n in range(5, 10):
            await bus.publish("j", numbered(n))
        await until(lambda: len(heard) == 10, "the new ones")
        assert [r.seq for r in heard] == list(range(1, 11))
        assert follow.last == 10
        await follow.stop()
        await bus.publish("j", numbered(10))
        await other._connection.round_trip(5.0)
        assert len(heard) == 10


async def test_from_a_sequence_and_from_now(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        for n in range(1, 6):
            await bus.publish("j", numbered(n))
        late: list[Received] = []
        await bus.follow(late.append, from_seq=4)
        new: list[Received] = []
        await bus.follow(new.append, from_seq=0)
        future: list[Received] = []
        await bus.follow(future.append, from_seq=7)
        assert numbers(late) == [4, 5]
        await bus.publish("j", numbered(6))
        await bus.publish("j", numbered(7))
        await until(lambda: len(late) == 4 and len(new) == 2 and future, "the new ones")
        assert numbers(new) == [6, 7]
        assert numbers(future) == [7]


async def test_one_job_and_some_areas_in_the_order_of_the_log(endpoint: Endpoint) -> None:
    """Each area is a subscription of its own; their order among each other must be the log's."""
    async with joined(endpoint) as bus, joined(endpoint) as other:
        heard: list[Received] = []
        await other.follow(heard.append, job="j", areas=["worker", "world", "ring"])
        made: list[Callable[[int], Event]] = [
            lambda n: WorldChanged(generation=n, run="r", status="running"),
            lambda n: WorkerStarted(worker="w", incarnation=n, node="n", pid=1),
            lambda n: RingBroken(worker="w", incarnation=n, generation=1, step=1, peer="p", side="next"),
            numbered,
        ]
        wanted = 0
        chance = random.Random(7)
        for n in range(400):
            kind = chance.randrange(4)
            job = chance.choice("jjjk")
            wanted += kind < 3 and job == "j"
            bus.post(job, made[kind](n))
        assert await bus.flush(60.0)
        await until(lambda: len(heard) == wanted, "all of them")
        assert [r.seq for r in heard] == sorted(r.seq for r in heard)
        assert {r.job for r in heard} == {"j"}
        assert heard == await bus.backlog(job="j", areas=["worker", "world", "ring"])


async def test_two_followers_on_one_connection_and_one_elsewhere(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:
        lists: list[list[Received]] = [[], [], []]
        await bus.follow(lists[0].append)
        await bus.follow(lists[1].append)
        await other.follow(lists[2].append)
        for n in range(50):
            bus.post("j", numbered(n))
        await until(lambda: all(len(x) == 50 for x in lists), "all")
        assert lists[0] == lists[1] == lists[2]


async def test_a_follower_that_joins_while_many_publish_misses_nothing(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:
        for n in range(250):
            bus.post("j", numbered(n))
        lists: list[list[Received]] = []
        while bus.unsent:
            heard: list[Received] = []
            lists.append(heard)
            await other.follow(heard.append)
        assert await bus.flush(30.0)
        await until(lambda: all(len(heard) == 250 for heard in lists), "all")
        assert len(lists) > 1
        for heard in lists:
            assert numbers(heard) == list(range(250))


async def test_a_dropped_live_message_is_read_from_the_log(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:
        heard: list[Received] = []
        follow = await other.follow(heard.append)
        readings = follow.readings
        listener = follow._listeners[0]
        take, dropped = listener._callback, []

        def lose_some(message: Msg) -> None:
            if message.headers and int(message.headers["Nats-Sequence"]) % 7 == 3:
                dropped.append(message)
            else:
                take(message)

        listener._callback = lose_some
        for n in range(50):
            await bus.publish("j", numbered(n))
        await until(lambda: len(heard) == 50, "all")
        assert numbers(heard) == list(range(50))
        assert len(dropped) == 7
        assert follow.readings > readings


async def test_a_flood_that_overflows_the_buffers_is_read_from_the_log(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last of them, on which no later message tells that it was dropped."""
    monkeypatch.setattr(listener_module, "PENDING_MESSAGES", 3)
    monkeypatch.setattr(follow_module, "_BUFFER", 5)
    async with joined(endpoint) as bus, joined(endpoint) as other:
        heard: list[Received] = []
        await other.follow(heard.append)
        await fill(bus, 1000)
        await until(lambda: len(heard) == 1000, "all")
        assert numbers(heard) == list(range(1000))
        assert other.dropped["live.reknit.*.>"] > 0


async def test_a_follower_that_froze_hears_all_afterwards(endpoint: Endpoint) -> None:
    """The loop blocked for longer than the broker's patience: it drops us, we come back, nothing is missing."""
    async with joined(endpoint, "frozen") as bus, joined(endpoint) as other:
        heard: list[Received] = []
        lost: list[int] = []
        bus._connection.on_lost.append(lambda: lost.append(1))
        await bus.follow(heard.append)
        for n in range(20):
            other.post("j", numbered(n))
        await other.flush(10.0)
        time.sleep(4.5)  # noqa: ASYNC251 - this is what a blocking callback does
        for n in range(20, 40):
            other.post("j", numbered(n))
        await until(lambda: len(heard) == 40, "all")
        assert numbers(heard) == list(range(40))


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Broker]:
    """A broker that does not wait for the disk: only for tests that need a long log."""

    def no_fsync(config: dict) -> None:  # type: ignore[type-arg]
        config["jetstream"].pop("sync_interval")

    broker = PlainServer(tmp_path / "hasty", no_fsync)
    broker.start()
    yield broker
    broker.stop()


async def test_a_backlog_of_twenty_thousand(hasty: Broker) -> None:
    async with joined(hasty.endpoint) as bus:
        await fill(bus, 20_000)
        heard: list[Received] = []
        began = time.monotonic()
        await bus.follow(heard.append)
        took = time.monotonic() - began
        assert numbers(heard) == list(range(20_000))
        print(f"20,000 events read in {took:.2f} s")
        beats = [0]

        async def beat() -> None:
            while True:
                await asyncio.sleep(0)
                beats[0] += 1

        beating = asyncio.create_task(beat())
        for _ in range(3):
            assert len(await bus.backlog()) == 20_000
        beating.cancel()
        assert beats[0] > 20  # the loop lived meanwhile


async def test_the_broker_killed_in_mid_traffic(broker: Broker) -> None:
    """Killed and started again a second later: what was acknowledged is there once; followers hear it in order."""
    async with joined(broker.endpoint, "a") as one, joined(broker.endpoint, "b") as two, joined(broker.endpoint) as ear:
        heard: list[Received] = []
        filtered: list[Received] = []
        await ear.follow(heard.append)
        await ear.follow(filtered.append, job="j", areas=["worker", "job"])
        acknowledged: dict[int, int] = {}
        stop = False

        async def publish_on(bus: Bus, first: int) -> None:
            n = first
            while not stop:
                acknowledged[n] = await bus.publish("j", numbered(n), deadline=60.0)
                n += 2

        publishing = [asyncio.create_task(publish_on(bus, k)) for k, bus in enumerate((one, two))]
        posted = 0
        for round_ in range(3):
            seen = len(heard)
            await until(lambda seen=seen: len(heard) > seen + 50, "traffic")
            broker.kill()
            for _ in range(20):
                one.post("k", numbered(posted))
                posted += 1
            await asyncio.sleep(1.0 if round_ == 0 else 0.05)
            broker.start()
        seen = len(heard)
        await until(lambda: len(heard) > seen + 50, "traffic")
        stop = True
        await asyncio.gather(*publishing)
        assert await one.flush(30.0)

        stored = await ear.backlog()
        await until(lambda: len(heard) >= len(stored), "all events")
        assert heard == stored
        assert [r.seq for r in stored] == list(range(1, len(stored) + 1))
        assert numbers([r for r in stored if r.job == "k"]) == list(range(posted))
        of_j = [r for r in stored if r.job == "j"]
        assert len(set(numbers(of_j))) == len(of_j)
        by_number = dict(zip(numbers(of_j), (r.seq for r in of_j), strict=True))
        assert by_number == acknowledged
        await until(lambda: len(filtered) >= len(of_j), "all of the filtered")
        assert filtered == of_j


async def test_the_network_cut_again_and_again(endpoint: Endpoint) -> None:
    async with Proxy(port_of(endpoint)) as proxy, joined(endpoint) as bus, joined(through(endpoint, proxy)) as lossy:
        heard: list[Received] = []
        await lossy.follow(heard.append)
        chance = random.Random(3)
        for n in range(150):
            bus.post("j", numbered(2 * n))
            lossy.post("j", numbered(2 * n + 1))
            if chance.random() < 0.1:
                proxy.deaf = chance.random() < 0.5
                await asyncio.sleep(chance.random() * 0.02)
                proxy.cut()
                proxy.deaf = False
        assert await bus.flush(30.0)
        assert await lossy.flush(30.0)
        await until(lambda: len(heard) >= 300, "all")
        assert heard == await bus.backlog()
        assert sorted(numbers(heard)) == list(range(300))
        assert [n for n in numbers(heard) if n % 2] == list(range(1, 300, 2))


async def test_a_broker_that_comes_back_empty_is_followed_from_its_beginning(broker: Broker) -> None:
    async with joined(broker.endpoint) as bus:
        heard: list[Received] = []
        await bus.follow(heard.append)
        for n in range(10):
            await bus.publish("j", numbered(n))
        await until(lambda: len(heard) == 10, "the old log")
        broker.kill()
        shutil.rmtree(broker.store / "jetstream")
        broker.start()
        bus.post("j", numbered(100))
        await until(lambda: len(heard) == 11, "the new log")
        await bus.publish("j", numbered(101))
        await until(lambda: len(heard) == 12, "the new log")
        assert numbers(heard)[10:] == [100, 101]
        assert [r.seq for r in heard[10:]] == [1, 2]


async def test_reconnected_is_hearing_again(broker: Broker) -> None:
    """How long the deafness lasts, printed; the limit is generous: a push consumer would need 19 s."""
    async with joined(broker.endpoint) as bus, joined(broker.endpoint) as other:
        heard: list[Received] = []
        await bus.follow(heard.append)
        took = []
        for n in range(5):
            broker.kill()
            await asyncio.sleep(0.1)
            broker.start()
            began = time.monotonic()
            await other.publish("j", numbered(n))
            await until(lambda n=n: len(heard) == n + 1, "the event")
            took.append(time.monotonic() - began)
        print("hearing again after", [f"{1000 * t:.0f} ms" for t in took])
        assert min(took) < 5.0


async def test_what_somebody_else_puts_beside_the_log_is_counted_and_said_once(
    broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint = broker.endpoint
    async with joined(endpoint) as bus:
        heard: list[Received] = []
        await bus.follow(heard.append)
        client = await nats.connect(endpoint.url, user=endpoint.user, password=endpoint.password)
        for _ in range(2000):
            await client.publish("live.reknit.j.worker.exited", b"\xc1junk")
        await client.drain()
        await bus.publish("j", numbered(1))
        await until(lambda: len(heard) == 1, "the event")
        assert numbers(heard) == [1]
    assert capfd.readouterr().err.count("not from the log") == 1


def all_stopped(pid: int) -> bool:
    """True once the kernel has stopped every thread of a process."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


async def test_following_begun_while_the_broker_is_frozen(broker: Broker) -> None:
    assert broker.pid
    async with joined(broker.endpoint) as bus:
        await bus.publish("j", numbered(1))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            # the signal is on its way: until all threads have stopped the broker may still answer
            await until(lambda: all_stopped(broker.pid), "the broker has stopped")
            heard: list[Received] = []
            following = asyncio.create_task(bus.follow(heard.append))
            await asyncio.sleep(0.5)
            assert not following.done()
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await asyncio.wait_for(following, 30.0)
        assert numbers(heard) == [1]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_outage_of_minutes(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    async with joined(broker.start()) as bus:
        heard: list[Received] = []
        await bus.follow(heard.append)
        await bus.publish("j", numbered(0))
        broker.kill()
        bus.post("j", numbered(1))
        await asyncio.sleep(150)
        assert not bus.connected
        broker.start()
        began = time.monotonic()
        await until(lambda: len(heard) == 2, "the event")
        assert time.monotonic() - began < 5.0
        broker.stop()
