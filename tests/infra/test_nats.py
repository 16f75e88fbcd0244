"""A broker with infra/nats/server.conf serves a job as the embedded one does."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reknit.core.bus import Bus
from reknit.core.context import Endpoint
from reknit.core.errors import Unauthorized
from support.buses import binary, joined, numbered, numbers, until

CONFIG = Path(__file__).parents[2] / "infra" / "nats" / "server.conf"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    port = free_port()
    config = tmp_path / "server.conf"
    text = CONFIG.read_text().replace("0.0.0.0:4222", f"127.0.0.1:{port}").replace("0.0.0.0:8222", "127.0.0.1:-1")
    config.write_text(text)
    passwords = {"REKNIT_NATS_PASSWORD": "p-one", "REKNIT_NATS_SYSTEM_PASSWORD": "p-two"}
    env = os.environ | passwords | {"REKNIT_NATS_STORE": str(tmp_path / "store")}
    checked = subprocess.run([binary(), "-t", "-c", config], check=False, env=env, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    server = subprocess.Popen([binary(), "-c", config], env=env, stderr=subprocess.DEVNULL)
    try:
        yield Endpoint(
            url=f"nats://127.0.0.1:{port}",
            user="reknit",
            password="p-one",
            system_user="system",
            system_password="p-two",
        )
    finally:
        server.terminate()
        server.wait(10)


async def test_it_stores_replays_and_tells_of_connections_that_end(endpoint: Endpoint) -> None:
    async with joined(endpoint) as bus:
        for n in (1, 2, 3):
            await bus.publish("job", numbered(n))
        heard: list = []
        await bus.follow(heard.append, job="job")
        assert numbers(heard) == [1, 2, 3]
        gone: list[tuple[int, str]] = []
        assert await bus.disconnects(lambda client, name: gone.append((client, name)))
        async with joined(endpoint, "somebody"):
            pass
        await until(lambda: any(name == "somebody" for _, name in gone), "the notice of a connection that ended")


async def test_it_lets_in_nobody_without_the_password(endpoint: Endpoint) -> None:
    async with joined(endpoint):  # it is up
        pass
    stranger = Endpoint(url=endpoint.url, user="reknit", password="wrong")
    with pytest.raises(Unauthorized):
        await Bus.connect(stranger, source="stranger", timeout=5.0)
