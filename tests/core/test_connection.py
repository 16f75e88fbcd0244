"""What the client library leaves open, each against the real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from reknit.core import connection as connection_module
from reknit.core import listener as listener_module
from reknit.core.bus import Bus
from reknit.core.connection import Connection, Forbidden, NotAnswered
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable, Unauthorized
from reknit.core.servers import shown
from support.buses import Broker, PlainServer, joined, numbered, numbers, until
from support.proxy import Proxy


@asynccontextmanager
async def opened(endpoint: Endpoint, timeout: float = 10.0) -> AsyncIterator[Connection]:
    connection = await Connection.open(endpoint.url, endpoint.user, endpoint.password, name="test", timeout=timeout)
    try:
        yield connection
    finally:
        await connection.close()


async def test_wrong_password_is_final_at_once(broker: Broker) -> None:
    wrong = Endpoint(url=broker.endpoint.url, user="reknit", password="wrong")
    began = time.monotonic()
    with pytest.raises(Unauthorized, match="refused the credentials"):
        await Bus.connect(wrong, source="t", timeout=60.0)
    assert time.monotonic() - began < 5.0


async def test_nobody_there_is_said_with_the_address_within_the_time_given() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ControlPlaneUnreachable, match=rf"nats://127\.0\.0\.1:{port} cannot be reached.*Refused"):
        await Bus.connect(Endpoint(url=f"nats://127.0.0.1:{port}"), source="t", timeout=0.3)


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
async def test_something_else_there(greeting: bytes) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(ControlPlaneUnreachable, match="cannot be reached"):
            await Bus.connect(Endpoint(url=f"nats://127.0.0.1:{port}"), source="t", timeout=0.5)
    finally:
        server.close()


@pytest.mark.parametrize("said", [b"CONNECT", b"SUB ", b"PUB "])
async def test_a_broker_that_goes_at_the_first_word_and_is_back(endpoint: Endpoint, said: bytes) -> None:
    """The time given is used: whoever starts just when the broker is started again need not fail."""
    async with Proxy(int(endpoint.url.rpartition(":")[2])) as proxy:
        proxy.cut_at = said
        through = Endpoint(url=f"nats://127.0.0.1:{proxy.port}", user=endpoint.user, password=endpoint.password)
        async with joined(through) as bus:
            assert proxy.cut_at == b""
            await bus.publish("j", numbered(1))
            assert numbers(await bus.backlog(job="j")) == [1]


async def test_an_address_that_is_none() -> None:
    with pytest.raises(ControlPlaneUnreachable, match="cannot be reached"):
        await Bus.connect(Endpoint(url="nats://127.0.0.1:port"), source="t", timeout=0.5)


async def test_a_broker_that_comes_later_is_found(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    endpoint = broker.start()
    broker.stop()
    connecting = asyncio.create_task(Bus.connect(endpoint, source="t", timeout=30.0))
    try:
        await asyncio.sleep(0.3)
        assert not connecting.done()
        broker.start()
        bus = await connecting
        assert await bus.publish("j", numbered(1)) == 1
        await bus.close()
    finally:
        connecting.cancel()
        broker.stop()


def test_credentials_in_an_address_are_never_shown() -> None:
    assert shown("nats://u:secret@h:1, nats://v:secret@i:2,nats://j:3") == "nats://h:1,nats://i:2,nats://j:3"


async def test_a_list_of_addresses_of_which_one_works(broker: Broker) -> None:
    end = broker.endpoint
    both = Endpoint(url=f"nats://127.0.0.1:1,{end.url}", user=end.user, password=end.password)
    async with joined(both) as bus:
        await bus.publish("j", numbered(1))
        broker.kill()
        broker.start()
        await bus.publish("j", numbered(2))


async def test_a_question_in_flight_fails_when_the_server_dies_not_at_its_timeout(broker: Broker) -> None:
    async with opened(broker.endpoint) as connection:
        await connection.listen("silent", lambda _message: None)
        asking = asyncio.create_task(connection.ask("silent", timeout=300.0))
        await connection.round_trip(5.0)
        broker.kill()
        with pytest.raises(NotAnswered) as raised:
            await asyncio.wait_for(asking, 30.0)
        assert raised.value.why == "lost"


async def test_nobody_listening_is_known_at_once(broker: Broker) -> None:
    async with opened(broker.endpoint) as connection:
        with pytest.raises(NotAnswered) as raised:
            await connection.ask("nobody.here", timeout=300.0)
        assert raised.value.why == "nobody"
        await connection.listen("silent", lambda _message: None)
        with pytest.raises(NotAnswered) as raised:
            await connection.ask("silent", timeout=0.05)
        assert raised.value.why == "late"


def _deny(config: dict) -> None:  # type: ignore[type-arg]
    config["accounts"]["REKNIT"]["users"][0]["permissions"] = {
        "publish": {"deny": ["reknit.*.job.>"]},
        "subscribe": {"deny": ["live.reknit.Secret.>"]},
    }


async def test_a_forbidden_subject_is_an_error_at_once(tmp_path: Path) -> None:
    broker = PlainServer(tmp_path, _deny)
    try:
        async with joined(broker.start()) as bus:
            began = time.monotonic()
            with pytest.raises(Unauthorized, match=r"forbids publishing to reknit\.j\.job\.scaled"):
                await bus.publish("j", numbered(1), deadline=60.0)
            with pytest.raises(Forbidden, match=r"forbids listening to live\.reknit\.Secret\.>"):
                await bus.follow(lambda _: None, job="Secret")
            assert time.monotonic() - began < 5.0
            # A forbidden letter is named and dropped; the ones behind it go on.
            bus.post("j", numbered(1))
            assert await bus.flush(10.0)
            assert bus.dropped == {"forbidden": 1}
    finally:
        broker.stop()


async def test_a_dead_library_client_is_replaced_and_listens_again(broker: Broker) -> None:
    async with joined(broker.endpoint) as bus, joined(broker.endpoint) as other:
        heard: list = []
        await bus.follow(heard.append)
        library = bus._connection._client
        assert library._transport is not None
        library._transport.write(b"NONSENSE\r\n")  # answered by -ERR, after which the library is closed for good
        await until(lambda: library.is_closed, "the library's end")
        await other.publish("j", numbered(1))
        await until(lambda: numbers(heard) == [1], "the event")
        assert await bus.publish("j", numbered(2)) == 2
        await until(lambda: numbers(heard) == [1, 2], "the event")


async def test_a_library_that_stopped_reconnecting_is_replaced(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_SILENT_LIMIT", 0.5)
    async with joined(broker.endpoint) as bus:
        library = bus._connection._client
        broker.kill()
        await until(lambda: library._reconnection_task is not None, "the attempt to reconnect")
        library._reconnection_task.cancel()
        broker.start()
        assert await bus.publish("j", numbered(1)) == 1


async def test_a_handshake_that_is_cut_off_is_no_connection(broker: Broker) -> None:
    """The library takes the end of the stream in place of PONG for a connection."""
    info = json.dumps({"server_id": "x", "version": "2.15.1", "max_payload": 1 << 20, "headers": True, "proto": 1})

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"INFO {info}\r\n".encode())
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(ControlPlaneUnreachable):
            await Bus.connect(Endpoint(url=f"nats://127.0.0.1:{port}"), source="t", timeout=1.0)
    finally:
        server.close()


async def test_messages_dropped_by_a_slow_listener_are_counted_and_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "PENDING_MESSAGES", 5)
    async with opened(broker.endpoint) as connection:
        told: list[int] = []
        heard: list[bytes] = []
        listener = await connection.listen("flood", lambda message: heard.append(message.data))
        listener.on_drop = lambda: told.append(1)
        for n in range(200):
            await connection.send("flood", b"%d" % n)
        await connection.round_trip(10.0)
        await until(lambda: len(heard) + connection.dropped["flood"] == 200, "all")
        assert connection.dropped["flood"] == len(told) > 0


async def test_a_listener_that_raises_hears_the_next_message(broker: Broker) -> None:
    async with opened(broker.endpoint) as connection:
        heard: list[bytes] = []

        def fail_once(message: object) -> None:
            heard.append(message.data)  # type: ignore[attr-defined]
            raise asyncio.CancelledError if len(heard) == 1 else ValueError("no")

        await connection.listen("x", fail_once)
        for _ in range(3):
            await connection.send("x", b"m")
        await until(lambda: len(heard) == 3, "all three")


async def test_a_frozen_server_is_waited_for(broker: Broker) -> None:
    """SIGSTOP for three seconds: nothing is lost, nothing twice, also of what was sent meanwhile."""
    assert broker.pid
    async with joined(broker.endpoint) as bus:
        heard: list = []
        await bus.follow(heard.append)
        await bus.publish("j", numbered(0))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            publishing = [asyncio.create_task(bus.publish("j", numbered(n), deadline=30.0)) for n in range(1, 6)]
            for n in range(6, 11):
                bus.post("j", numbered(n))
            await asyncio.sleep(3.0)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        seqs = await asyncio.gather(*publishing)
        assert await bus.flush(30.0)
        await until(lambda: len(heard) == 11, "all events")
        assert sorted(numbers(heard)) == list(range(11))
        assert len(set(seqs)) == 5
        assert [n for n in numbers(heard) if n > 5] == list(range(6, 11))
        assert len(await bus.backlog()) == 11


async def test_many_cuts_leave_nothing_behind(broker: Broker) -> None:
    """Reconnecting again and again costs no file, no task."""
    port = int(broker.endpoint.url.rpartition(":")[2])
    async with Proxy(port) as proxy:
        end = broker.endpoint
        through = Endpoint(url=f"nats://127.0.0.1:{proxy.port}", user=end.user, password=end.password)
        async with joined(through) as bus:
            heard: list = []
            await bus.follow(heard.append)
            counts = []
            for n in range(30):
                proxy.cut()
                await bus.publish("j", numbered(n))
                await until(lambda n=n: len(heard) == n + 1, "the event")
                counts.append((sum(1 for _ in Path("/proc/self/fd").iterdir()), len(asyncio.all_tasks())))
            assert counts[-1][0] <= counts[4][0] + 4
            assert counts[-1][1] <= counts[4][1] + 6
