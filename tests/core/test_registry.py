"""The registry over a real broker: who is there, how well, who is gone; over kills and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

from reknit.core.bus import Bus
from reknit.core.context import ENDPOINT, Endpoint, to_env
from reknit.core.presence import announce
from reknit.core.registry import PREFIX
from reknit.core.registry_entry import GONE, KEPT, MISSED, Card, Entry, Seen, decode, encode
from reknit.core.registry_watch import Change
from support.buses import Broker, PlainServer, joined, until

EVERY = 0.4
_SERVICE = f"""
import asyncio
from reknit.core.bus import Bus
from reknit.core.context import ENDPOINT, Endpoint, from_env
from reknit.core.presence import announce

async def main():
    bus = await Bus.connect(from_env(ENDPOINT, Endpoint), source="probe")
    announce(bus, "probe", lambda: ("passing", "fine"), {{}}, every={EVERY})
    await asyncio.Event().wait()

asyncio.run(main())
"""


def entry(name: str = "one", **more: object) -> Entry:
    return Entry(**{"kind": "agent", "name": name, "id": f"{name}/1", "job": "j", **more})  # type: ignore[arg-type]


@contextlib.contextmanager
def service(endpoint: Endpoint) -> Iterator[subprocess.Popen[bytes]]:
    """A service that is only registered, as a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", _SERVICE], env=os.environ | {ENDPOINT: to_env(endpoint)})
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


@contextlib.asynccontextmanager
async def watching(bus: Bus) -> AsyncIterator[list[Change]]:
    """All that a watcher is told."""
    changes: list[Change] = []
    task = asyncio.create_task(bus.registry.watch(changes.append, tick=0.05))
    try:
        yield changes
        assert not task.done(), "a watcher goes on until it is cancelled"
    finally:
        task.cancel()
        await asyncio.wait({task})


def told(changes: list[Change], name: str) -> list[tuple[str, str]]:
    return [(c.what, c.seen.health) for c in changes if c.seen.entry.name == name]


async def names(bus: Bus) -> dict[str, str]:
    return {seen.entry.name: seen.health for seen in await bus.registry.read()}


async def comes(bus: Bus, wanted: dict[str, str]) -> None:
    end = time.monotonic() + 30
    while (found := await names(bus)) != wanted:
        assert time.monotonic() < end, f"{found}, not {wanted}"
        await asyncio.sleep(0.02)


# ---------------------------------------------------------------------------------------------------------------- pure


@pytest.mark.parametrize(
    ("age", "health", "reason", "forgotten"),
    [
        (0.0, "warning", "busy", False),
        (MISSED * 2.0, "warning", "busy", False),
        (MISSED * 2.0 + 0.1, "critical", GONE, False),
        (KEPT * 2.0 + 0.1, "critical", GONE, True),
    ],
)
def test_an_entry_is_as_true_as_it_is_young(age: float, health: str, reason: str, forgotten: bool) -> None:
    seen = Seen("k", entry(health="warning", reason="busy"), 2.0, age)
    assert (seen.health, seen.reason, seen.forgotten) == (health, reason, forgotten)


def test_cards_are_json_that_any_tool_reads() -> None:
    card = Card(life="f", every=5.0, entries=(entry(address="[::1]:7"), entry("two", kind="worker")))
    assert decode(encode(card)) == card
    assert json.loads(encode(card))["entries"][0]["address"] == "[::1]:7"
    assert decode(b"") is None
    assert decode(b'{"life": 7}') is None
    assert decode(b"\xff") is None


# ------------------------------------------------------------------------------------------------------------- entries


async def test_who_is_registered_is_found_with_all_that_it_says(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:
        assert await other.registry.read() == [], "nobody has made the bucket yet"
        said = entry(address="10.0.0.1:7", version="1.2.3", node="n", pid=7, health="warning", reason="why", since=1.0)
        bus.registry.register("agent.j.one", lambda: [said, entry("w", kind="worker")])
        bus.registry.register("service.s.1", lambda: [entry("s", kind="service", job="")])
        await comes(other, {"one": "warning", "w": "passing", "s": "passing"})
        found = await other.registry.read()
        assert [seen.entry.name for seen in found] == ["s", "one", "w"], "services, agents, workers"
        assert found[1].entry == said
        assert 0 <= found[1].age < 30


async def test_a_change_is_written_at_once_and_one_that_leaves_is_gone_at_once(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other, watching(other) as changes:
        now = [entry()]
        registration = bus.registry.register("agent.j.one", lambda: now, every=60.0)
        await until(lambda: told(changes, "one") == [("there", "passing")])
        now[:] = [entry(health="critical", reason="on fire"), entry("w", kind="worker")]
        await until(lambda: told(changes, "one") == [("there", "passing"), ("changed", "critical")])
        await until(lambda: told(changes, "w") == [("there", "passing")])
        now.pop()
        await until(lambda: told(changes, "w") == [("there", "passing"), ("left", "passing")])
        await registration.end()
        await until(lambda: told(changes, "one")[2:] == [("left", "critical")])
        assert await names(other) == {}


async def test_one_that_is_killed_is_critical_then_forgotten(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, watching(bus) as changes:
        with service(endpoint) as process:
            await comes(bus, {"probe": "passing"})
            await until(lambda: told(changes, "probe") == [("there", "passing")])
            process.kill()
            await comes(bus, {"probe": "critical"})
            seen = (await bus.registry.read())[0]
            assert seen.reason == GONE
            assert seen.age > MISSED * EVERY
            await comes(bus, {})
        await until(lambda: told(changes, "probe")[1:] == [("changed", "critical"), ("gone", "critical")])


async def test_one_that_goes_on_is_never_critical(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, watching(bus) as changes:
        with service(endpoint):
            await until(lambda: told(changes, "probe") == [("there", "passing")])
            end = time.monotonic() + (MISSED + 3) * EVERY
            while time.monotonic() < end:
                seen = await bus.registry.read()
                assert [s.entry.name for s in seen] == ["probe"]
                await asyncio.sleep(0.05)
        assert ("left", "passing") not in told(changes, "probe")


async def test_a_restart_of_the_broker_loses_nobody(broker: Broker, endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other, watching(other) as changes:
        bus.registry.register("agent.j.one", lambda: [entry()], every=1.0)
        await until(lambda: told(changes, "one") == [("there", "passing")])
        broker.kill()
        await until(lambda: not bus.connected and not other.connected)
        away = time.monotonic()
        # long enough for it to be critical, if anybody judged
        await until(lambda: time.monotonic() - away > (MISSED + 0.5) * 1.0)
        broker.start()
        await comes(other, {"one": "passing"})
        bus.registry.register("agent.j.two", lambda: [entry("two")], every=1.0)
        await until(lambda: told(changes, "two") == [("there", "passing")])
        assert told(changes, "one") == [("there", "passing")], "nobody is judged for a silence that was the broker's"


async def test_one_that_died_while_the_broker_was_away_is_found_out(broker: Broker, endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, watching(bus) as changes:
        with service(endpoint) as process:
            await until(lambda: told(changes, "probe") == [("there", "passing")])
            broker.kill()
            process.kill()
            process.wait(10)
            broker.start()
            await until(lambda: told(changes, "probe")[-1] == ("gone", "critical"))


async def test_of_two_with_one_name_the_newer_is_registered(endpoint: Endpoint) -> None:
    async with joined(endpoint) as old, joined(endpoint) as new:
        first = old.registry.register("agent.j.one", lambda: [entry(pid=1)], every=EVERY)
        await comes(new, {"one": "passing"})
        second = new.registry.register("agent.j.one", lambda: [entry(pid=2)], every=EVERY)
        await until(lambda: not first.active)
        assert second.active
        await first.end()
        assert [seen.entry.pid for seen in await new.registry.read()] == [2], "the older one takes nothing with it"


async def test_an_answer_that_was_lost_is_no_conflict(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        now = [entry()]
        registration = bus.registry.register("agent.j.one", lambda: now, every=EVERY)
        await comes(bus, {"one": "passing"})
        # written in its name, as it would have been by a renewal whose answer did not come back
        card = Card(life=registration._life, every=EVERY, entries=(entry(reason="lost"),))
        await bus.registry.put("agent.j.one", card, None)
        now[:] = [entry(health="warning")]
        await comes(bus, {"one": "warning"})
        assert registration.active


async def test_one_that_was_forgotten_comes_back(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        registration = bus.registry.register("agent.j.one", lambda: [entry()], every=EVERY)
        await comes(bus, {"one": "passing"})
        assert registration._revision
        revision = (await bus.registry.holder("agent.j.one"))[1]
        await bus.registry.delete("agent.j.one", revision)
        await comes(bus, {"one": "passing"})


async def test_what_is_no_card_is_not_read(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, watching(bus) as changes:
        bus.registry.register("agent.j.one", lambda: [entry()])
        await until(lambda: told(changes, "one"))
        await bus._connection.ask(f"{PREFIX}somebody.else", b"hello")
        assert await names(bus) == {"one": "passing"}


async def test_what_is_registered_does_not_suffer_from_it(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:
        broken = [True]

        def tell() -> list[Entry]:
            if broken[0]:
                raise RuntimeError("bad day")
            return [entry()]

        began = time.monotonic()
        registration = bus.registry.register("agent.j.one", tell, every=EVERY)
        assert time.monotonic() - began < 1.0
        bus.registry.register("agent.j.two", lambda: [entry("two")])
        await comes(other, {"two": "passing"})
        assert registration.active
        broken[0] = False
        await comes(other, {"one": "passing", "two": "passing"})


async def test_a_broker_that_forbids_it_holds_up_nobody(tmp_path: Path) -> None:
    def forbid(config: dict[str, object]) -> None:
        accounts = config["accounts"]
        assert isinstance(accounts, dict)
        accounts["REKNIT"]["users"][0]["permissions"] = {
            "publish": {"deny": ["$KV.>"]},
            "subscribe": {"deny": ["$SRV.>"]},
        }

    server = PlainServer(tmp_path / "broker", forbid)
    try:
        async with joined(server.start()) as bus:
            registration = bus.registry.register("agent.j.one", lambda: [entry()], every=EVERY)
            announce(bus, "probe", lambda: ("passing", ""), {})
            await until(lambda: not registration.active)
            assert await names(bus) == {}
            assert await bus.micro.ask(0.2) == {}
    finally:
        server.stop()


# --------------------------------------------------------------------------------------------------------------- micro


async def test_services_answer_as_nats_asks(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:

        async def answer(question: bytes) -> bytes:
            if question == b"bad":
                raise ValueError("no such thing")
            return question

        await bus.serve("probe", "echo", answer)
        announce(bus, "probe", lambda: ("passing", ""), {"jobs": 3})
        await comes(other, {"probe": "passing"})
        found: dict[str, dict[str, object]] = {}
        end = time.monotonic() + 30
        while not found:
            assert time.monotonic() < end
            found = await other.micro.ask(0.2)
        seen = (await other.registry.read())[0]
        assert list(found) == [seen.entry.id], "one id in both"
        ping = ServicePing.from_dict(found[seen.entry.id])
        assert (ping.name, ping.version) == ("reknit-probe", seen.entry.version)
        await other.request("probe", "echo", b"x")
        with pytest.raises(Exception, match="no such thing"):
            await other.request("probe", "echo", b"bad")
        connection = other._connection
        info = ServiceInfo.from_dict(json.loads((await connection.ask("$SRV.INFO.reknit-probe")).data))
        assert [e.subject for e in info.endpoints] == ["reknit-svc.probe.echo"]
        answered = await connection.ask(f"$SRV.STATS.reknit-probe.{seen.entry.id}")
        stats = ServiceStats.from_dict(json.loads(answered.data))
        (echo,) = stats.endpoints
        assert (echo.num_requests, echo.num_errors, echo.data) == (2, 1, {"jobs": 3})
        assert echo.last_error is not None
        assert "no such thing" in echo.last_error
        assert echo.processing_time > 0


async def test_answers_outlive_a_restart_of_the_broker(broker: Broker, endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus, joined(endpoint) as other:
        announce(bus, "probe", lambda: ("passing", ""), {})
        await comes(other, {"probe": "passing"})
        broker.kill()
        await until(lambda: not bus.connected and not other.connected)
        broker.start()
        await until(lambda: bus.connected and other.connected)
        await comes(other, {"probe": "passing"})
        id_ = (await other.registry.read())[0].entry.id
        assert list(await other.micro.ask(20.0, frozenset({id_}))) == [id_]
