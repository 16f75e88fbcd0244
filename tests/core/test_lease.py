"""A lease over a real broker: one holds it, whoever is next takes over, and how soon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from reknit.core.connection import Connection
from reknit.core.context import ENDPOINT, Endpoint, to_env
from reknit.core.jetstream import unpacked
from reknit.core.lease import LOOK, TTL, Lease
from reknit.core.undone import KEEP, MOST, Undone
from support.buses import Broker, joined, until

_HOLDER = """
import asyncio
from reknit.core.bus import Bus
from reknit.core.context import ENDPOINT, Endpoint, from_env

async def main():
    bus = await Bus.connect(from_env(ENDPOINT, Endpoint), source="holder")
    lease = bus.lease("x", lambda: print("taken", flush=True))
    await lease.start()
    said = None
    while True:
        if lease.held != said:
            said = lease.held
            print("held" if said else "not held", flush=True)
        await asyncio.sleep(0.02)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def claimant(endpoint: Endpoint, name: str = "x", *, disconnects: bool = False) -> AsyncIterator[Lease]:
    async with joined(endpoint, "claimant") as bus:
        lease = bus.lease(name, lambda: None)
        if disconnects:
            assert await bus.disconnects(lambda client, _name: lease.notice(client))
        await lease.start()
        try:
            yield lease
        finally:
            await lease.stop()


@contextlib.contextmanager
def holder(endpoint: Endpoint) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER],
        env=os.environ | {ENDPOINT: to_env(endpoint)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


async def says(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(30.0):
        while (await asyncio.to_thread(process.stdout.readline)).strip() != words:
            assert process.poll() is None


async def test_of_many_that_want_it_in_one_moment_one_has_it(endpoint: Endpoint) -> None:
    async with contextlib.AsyncExitStack() as stack:
        leases = [await stack.enter_async_context(claimant(endpoint)) for _ in range(10)]
        await until(lambda: sum(lease.held for lease in leases) == 1, "a holder")
        await asyncio.sleep(2 * LOOK)
        assert sum(lease.held for lease in leases) == 1
        first = next(lease for lease in leases if lease.held)
        assert {lease.other.holder for lease in leases if lease.other is not None} == {first.me}


async def test_other_leases_are_others(endpoint: Endpoint) -> None:
    async with claimant(endpoint, "x") as one, claimant(endpoint, "y") as two:
        await until(lambda: one.held and two.held, "both")


@pytest.mark.parametrize("told", [True, False], ids=["told of the disconnect", "not told"])
async def test_whoever_stands_by_takes_over_when_the_holder_is_killed(
    endpoint: Endpoint, told: bool, record_property: pytest.RecordProperty
) -> None:
    with holder(endpoint) as process:
        await says(process, "held")
        async with claimant(endpoint, disconnects=told) as lease:
            await until(lambda: lease.other is not None, "it knows who holds it")
            assert not lease.held
            took = time.monotonic()
            process.kill()
            await until(lambda: lease.held, "the takeover")
            took = time.monotonic() - took
            record_property("takeover_ms", round(took * 1000))
            print(f"SIGKILL of the holder -> the lease is ours: {took * 1000:.0f} ms (told: {told})")
            assert lease.takeovers == 1
            assert took < TTL, "by word of the broker, not by waiting"


async def test_a_holder_that_stands_still_loses_it_and_knows(endpoint: Endpoint) -> None:
    with holder(endpoint) as process:
        await says(process, "held")
        async with claimant(endpoint) as lease:
            await until(lambda: lease.other is not None, "it knows who holds it")
            process.send_signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                await until(lambda: lease.held, "the takeover")
                assert time.monotonic() - began > TTL - 1.1, "not before its time is over"
            finally:
                process.send_signal(signal.SIGCONT)
            await says(process, "not held")
            await asyncio.sleep(2 * LOOK)
            assert lease.held


async def test_a_broker_that_was_away_and_forgot_the_bucket(broker: Broker, endpoint: Endpoint) -> None:
    async with claimant(endpoint) as one, claimant(endpoint) as two:
        await until(lambda: one.held or two.held, "a holder")
        broker.kill()
        await asyncio.sleep(0.5)
        broker.start()
        await asyncio.sleep(1.0)
        await until(lambda: one.held != two.held, "one holder again")


async def test_without_the_right_to_a_bucket_everybody_acts(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that forbids us the bucket: two of a kind do everything twice, as without a lease."""

    async def elsewhere(connection: Connection, verb: str, _body: Any, *, timeout: float) -> dict[str, Any]:
        # a subject that our account may not use as an API
        return unpacked(await connection.ask(f"$SYS.REQ.{verb}", b"", timeout=timeout))

    monkeypatch.setattr("reknit.core.lease.call", elsewhere)
    monkeypatch.setattr("reknit.core.lease.BLIND_AFTER", 0.5)
    async with claimant(endpoint) as one, claimant(endpoint) as two:
        await until(lambda: one.held and two.held, "both act")


async def test_bus_tells_the_brokers_time(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        now = time.monotonic() + bus.ahead
        assert abs(now - time.time()) < 5.0, "this broker runs on this machine"
        await bus.measure()
        assert abs(bus.ahead - (time.time() - time.monotonic())) < 5.0


def test_what_was_kept_is_done_once_in_order_and_only_if_it_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    undone = Undone()
    undone.keep("old", lambda: done.append(0))
    now += KEEP + 0.1
    undone.keep("a", lambda: done.append(1))
    undone.keep("b", lambda: done.append(2))
    undone.keep("a", lambda: done.append(3))
    undone.release()
    undone.release()
    assert done == [2, 3]
    for i in range(2 * MOST):
        undone.keep(i, lambda: None)
    assert len(undone) == MOST
