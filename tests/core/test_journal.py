"""The stored stream: each append once, whatever became of its acknowledgement."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.msg import Msg

from reknit.core.connection import Connection, NotAnswered
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable, ReknitError, StaleWorld
from reknit.core.events import EvaluationFinished
from reknit.core.journal import MSG_ID, Journal
from reknit.core.stored import Stored, live
from support.buses import Broker, joined, numbered, until
from support.proxy import Proxy

WORLD = "reknit.j.world.changed"


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


@asynccontextmanager
async def journals(
    endpoint: Endpoint, proxy: Proxy, *, duplicate_window: float = 120.0
) -> AsyncIterator[tuple[Journal, Journal]]:
    """One journal directly, one through a proxy that can lose answers."""
    through = f"nats://127.0.0.1:{proxy.port}"
    direct = await Connection.open(endpoint.url, endpoint.user, endpoint.password, name="direct", timeout=10)
    lossy = await Connection.open(through, endpoint.user, endpoint.password, name="lossy", timeout=10)
    one, other = (Journal(c, duplicate_window=duplicate_window) for c in (direct, lossy))
    try:
        await one.ensure(soon())
        await other.ensure(soon())
        yield one, other
    finally:
        await direct.close()
        await lossy.close()


async def everything(journal: Journal, *filters: str) -> list[Stored]:
    found: list[Stored] = []
    await journal.replay(filters or ["reknit.>"], 1, found.append)
    return found


async def stored(journal: Journal) -> None:
    while await journal.last(WORLD) is None:  # noqa: ASYNC110 - what it waits for happens in another process
        await asyncio.sleep(0.005)


def port_of(endpoint: Endpoint) -> int:
    return int(endpoint.url.rpartition(":")[2])


async def test_compare_and_set_whose_acknowledgement_was_lost_is_its_own(endpoint: Endpoint) -> None:
    """The server refuses the resend as stale; the journal must see that it is its own first attempt that is there."""
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, lossy):
        proxy.deaf = True
        appending = asyncio.create_task(lossy.append(WORLD, b"mine", {MSG_ID: "w1"}, expect_last=0, deadline=soon()))
        await stored(direct)
        # Meanwhile somebody else follows on it: looking at the newest message only would not be enough.
        theirs = await direct.append(WORLD, b"theirs", {MSG_ID: "w2"}, expect_last=1, deadline=soon())
        proxy.deaf = False
        proxy.cut()
        assert await appending == 1
        assert theirs == 2
        assert [m.data for m in await everything(direct)] == [b"mine", b"theirs"]


async def test_compare_and_set_lost_to_another_is_stale_also_when_unsure(endpoint: Endpoint) -> None:
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, lossy):
        await direct.append(WORLD, b"theirs", {MSG_ID: "w2"}, expect_last=0, deadline=soon())
        proxy.deaf = True
        appending = asyncio.create_task(lossy.append(WORLD, b"mine", {MSG_ID: "w1"}, expect_last=0, deadline=soon()))
        await asyncio.sleep(0.1)
        proxy.deaf = False
        proxy.cut()
        with pytest.raises(StaleWorld, match="expected 0"):
            await appending


async def test_plain_append_whose_acknowledgement_was_lost_is_stored_once(endpoint: Endpoint) -> None:
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, lossy):
        proxy.deaf = True
        appending = asyncio.create_task(lossy.append(WORLD, b"x", {MSG_ID: "a"}, deadline=soon()))
        await stored(direct)
        proxy.deaf = False
        proxy.cut()
        assert await appending == 1
        assert len(await everything(direct)) == 1


async def test_resend_after_the_broker_forgot_the_id_is_stored_once(endpoint: Endpoint) -> None:
    """An outage may be longer than the broker remembers ids."""
    window = 0.3
    async with (
        Proxy(port_of(endpoint)) as proxy,
        journals(endpoint, proxy, duplicate_window=window) as (direct, lossy),
    ):
        proxy.deaf = True
        appending = asyncio.create_task(lossy.append(WORLD, b"x", {MSG_ID: "a"}, deadline=soon()))
        await stored(direct)
        await direct.append(WORLD, b"y", {MSG_ID: "b"}, deadline=soon())
        await asyncio.sleep(2 * window)
        again = await direct._connection.ask(WORLD, b"y", headers={MSG_ID: "b"})
        assert json.loads(again.data)["seq"] == 3  # the broker has indeed forgotten
        proxy.deaf = False
        proxy.cut()
        assert await appending == 1
        assert [m.data for m in await everything(direct)] == [b"x", b"y", b"y"]


async def test_headers_of_the_caller_are_left_alone(endpoint: Endpoint) -> None:
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, _):
        headers = {MSG_ID: "a"}
        await direct.append(WORLD, b"x", headers, expect_last=0, deadline=soon())
        assert headers == {MSG_ID: "a"}


async def test_without_a_stream_the_append_makes_one(endpoint: Endpoint) -> None:
    """Somebody removed the stream: the broker answers "nobody"; the journal makes it anew instead of giving up."""
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, _):
        await direct._call("STREAM.DELETE.REKNIT")
        assert await direct.append(WORLD, b"x", {MSG_ID: "a"}, deadline=soon()) == 1


async def test_twenty_that_make_the_stream_at_once(endpoint: Endpoint) -> None:
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, other):
        await direct._call("STREAM.DELETE.REKNIT")
        states = await asyncio.gather(*((direct, other)[n % 2].ensure(soon()) for n in range(20)))
        assert len({state.created for state in states}) == 1


async def test_a_stream_of_an_older_version_takes_the_areas_that_are_new(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        await bus.publish("job", numbered(1))
        found = json.loads((await bus._connection.ask("$JS.API.STREAM.INFO.REKNIT")).data)["config"]
        older = [s for s in found["subjects"] if ".evaluation." not in s]
        assert len(older) == len(found["subjects"]) - 1
        await bus._connection.ask("$JS.API.STREAM.UPDATE.REKNIT", json.dumps({**found, "subjects": older}).encode())
    async with joined(endpoint) as bus:
        event = EvaluationFinished(run="r", evaluation="e", step=1, worker="w")
        await bus.publish("job", event)
        assert [r.event for r in await bus.backlog(job="job")] == [numbered(1), event]


async def test_a_stream_made_by_hand_that_cannot_serve_is_named(broker: Broker) -> None:
    end = broker.endpoint
    connection = await Connection.open(end.url, end.user, end.password, name="t", timeout=10)
    try:
        config = {"name": "REKNIT", "subjects": ["reknit.*.world.>"], "storage": "file", "retention": "limits"}
        await connection.ask("$JS.API.STREAM.CREATE.REKNIT", json.dumps(config).encode())
        with pytest.raises(ReknitError, match=r"exists, but does not store reknit\.\*\.checkpoint\.>"):
            await Journal(connection).ensure(soon())
    finally:
        await connection.close()


async def test_a_full_store_is_said_and_recovers_by_itself(broker: Broker) -> None:
    """No space: refused until the deadline, then said in words; posts wait until there is space again."""
    async with joined(broker.endpoint) as bus:
        config = {"name": "REKNIT", "max_bytes": 100, "discard": "new"}
        found = json.loads((await bus._connection.ask("$JS.API.STREAM.INFO.REKNIT")).data)["config"]
        await bus._connection.ask("$JS.API.STREAM.UPDATE.REKNIT", json.dumps({**found, **config}).encode())
        with pytest.raises(ControlPlaneUnreachable, match="maximum bytes exceeded"):
            await bus.publish("j", numbered(1), deadline=0.3)
        # Space is back: what waits in the outbox goes on by itself.
        bus.post("j", numbered(2))
        await bus._connection.ask("$JS.API.STREAM.UPDATE.REKNIT", json.dumps({**found, "max_bytes": -1}).encode())
        assert await bus.flush(20.0)


async def test_reading_is_cut_off_by_a_lost_connection_at_once(endpoint: Endpoint) -> None:
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, lossy):

        def cut(_stored: Stored) -> None:
            proxy.deaf = True
            proxy.cut()

        for _ in range(700):
            await direct._connection.send("reknit.j.job.scaled", b"x" * 1000)
        while (await direct.ensure(soon())).last < 700:  # noqa: ASYNC110 - it stores them in another process
            await asyncio.sleep(0.01)
        with pytest.raises(NotAnswered):
            await asyncio.wait_for(lossy.replay(["reknit.>"], 1, cut), 20.0)


async def test_reading_messages_of_megabytes_does_not_make_us_slow(endpoint: Endpoint) -> None:
    """A whole pull of large messages would exceed what the broker keeps for a client before it drops it."""
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, _):
        big = b"x" * (3 << 20)
        for n in range(12):
            await direct.append(WORLD, big, {MSG_ID: str(n)}, deadline=soon())
        lost: list[int] = []
        direct._connection.on_lost.append(lambda: lost.append(1))
        assert [len(m.data) for m in await everything(direct)] == [len(big)] * 12
        assert not lost


async def test_reading_leaves_no_consumer(endpoint: Endpoint) -> None:
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, _):
        await direct.append(WORLD, b"x", {MSG_ID: "a"}, deadline=soon())
        for _ in range(5):
            await everything(direct, WORLD)
        await direct._connection.round_trip(5.0)
        state = (await direct._call("STREAM.INFO.REKNIT"))["state"]
        assert state["consumer_count"] == 0


async def test_live_messages_tell_the_sequence_before_on_their_own_subject(endpoint: Endpoint) -> None:
    async with Proxy(port_of(endpoint)) as proxy, journals(endpoint, proxy) as (direct, _):
        heard: list[Msg] = []
        await direct._connection.listen("live.>", heard.append)
        for n, subject in enumerate((WORLD, "reknit.j.job.scaled", WORLD)):
            await direct.append(subject, b"x", {MSG_ID: str(n)}, deadline=soon())
        with pytest.raises(StaleWorld):
            await direct.append(WORLD, b"refused", {MSG_ID: "r"}, expect_last=1, deadline=soon())
        await direct.append(WORLD, b"x", {MSG_ID: "z"}, deadline=soon())
        await until(lambda: len(heard) == 4, "four messages")
        told = [live(message) for message in heard]
        assert [(t.seq, t.previous) for t in told if t] == [(1, 0), (2, 0), (3, 1), (4, 3)]
        await direct._connection.send("live.reknit.j.world.changed", b"forged")
        await until(lambda: len(heard) == 5, "the fifth")
        assert live(heard[4]) is None
