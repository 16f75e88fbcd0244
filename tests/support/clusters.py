"""Three real nats-servers that are a cluster, with infra/nats/cluster.conf, on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reknit.core.broker import binary
from reknit.core.connection import Connection
from reknit.core.context import Endpoint
from reknit.core.errors import ReknitError

CONFIG = Path(__file__).parents[2] / "infra" / "nats" / "cluster.conf"


class Cluster:
    """Use it in a `with`: all servers are gone afterwards. `kill(i)`, `start(i)`, `await leader()`."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self._folder = folder
        ports = _free_ports(2 * size)
        self._client, self._route = ports[:size], ports[size:]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * size
        self.names = [f"nats-{i + 1}" for i in range(size)]

    def __enter__(self) -> Self:
        try:
            for i in range(len(self.names)):
                self.start(i)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for i, process in enumerate(self._processes):
            if process is not None:
                self.kill(i)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            url=",".join(f"nats://127.0.0.1:{port}" for port in self._client),
            user="reknit",
            password="p-one",
            system_user="system",
            system_password="p-two",
        )

    def start(self, i: int) -> None:
        name = self.names[i]
        config = self._folder / f"{name}.conf"
        text = CONFIG.read_text().replace("0.0.0.0:4222", f"127.0.0.1:{self._client[i]}")
        text = text.replace("0.0.0.0:6222", f"127.0.0.1:{self._route[i]}").replace("0.0.0.0:8222", "127.0.0.1:-1")
        config.write_text(text)
        routes = {
            f"REKNIT_NATS_ROUTE_{k}": f"nats-route://route:p-three@127.0.0.1:{self._route[(k - 1) % len(self._route)]}"
            for k in (1, 2, 3)
        }
        env = os.environ | {
            "REKNIT_NATS_NAME": name,
            "REKNIT_NATS_STORE": str(self._folder / name),
            "REKNIT_NATS_PASSWORD": "p-one",
            "REKNIT_NATS_SYSTEM_PASSWORD": "p-two",
            "REKNIT_NATS_ROUTE_PASSWORD": "p-three",
            **routes,
        }
        log = (self._folder / f"{name}.log").open("ab")
        with log:
            self._processes[i] = subprocess.Popen([binary(), "-c", config], env=env, stdout=log, stderr=log)

    def kill(self, i: int) -> None:
        """SIGKILL."""
        process = self._processes[i]
        assert process is not None
        process.kill()
        process.wait(10)
        self._processes[i] = None

    async def info(self, stream: str = "REKNIT") -> dict[str, Any]:
        """What the cluster says of a stream; waits until it has a leader."""
        return await self._asked(
            f"$JS.API.STREAM.INFO.{stream}", lambda found: bool((found.get("cluster") or {}).get("leader"))
        )

    async def formed(self) -> None:
        """Return once the servers have found each other and take streams."""
        await self._asked("$JS.API.INFO", lambda _found: True)

    async def _asked(self, subject: str, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = self.endpoint
        deadline = asyncio.get_running_loop().time() + 60.0
        while True:
            with contextlib.suppress(ReknitError):
                connection = await Connection.open(end.url, end.user, end.password, name="look", timeout=5.0)
                try:
                    found: dict[str, Any] = json.loads((await connection.ask(subject, timeout=2.0)).data)
                    if "error" not in found and fits(found):
                        return found
                finally:
                    await connection.close()
            assert asyncio.get_running_loop().time() < deadline, f"no answer to {subject}"
            await asyncio.sleep(0.1)

    async def leader(self, stream: str = "REKNIT") -> int:
        """Number of the server that leads a stream."""
        return self.names.index((await self.info(stream))["cluster"]["leader"])


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
