"""A service as a real process over a real broker, killed and started again as a test likes, ended whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from reknit.core.bus import Bus
from reknit.core.context import ENDPOINT, Endpoint, to_env
from reknit.core.errors import ControlPlaneUnreachable


class ServiceProcess:
    """`python -m reknit.services.<name>`.

    Use it in a `with`: the process is gone afterwards.
    """

    def __init__(self, name: str, endpoint: Endpoint, **env: str) -> None:
        self.name = name
        self._env = os.environ | {ENDPOINT: to_env(endpoint), "REKNIT_LOG_LEVEL": "info"} | env
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", f"reknit.services.{self.name}"], env=self._env)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def terminate(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(10)


async def ready(bus: Bus, name: str, pid: int, timeout: float = 30.0) -> dict[str, Any]:
    """Return the answer to a ping once this very process has read the log."""
    end = asyncio.get_running_loop().time() + timeout
    while True:
        try:
            answer: dict[str, Any] = json.loads(await bus.request(name, "ping", timeout=1.0))
            if answer["ready"] and answer["pid"] == pid:
                return answer
        except ControlPlaneUnreachable:
            answer = {}
        assert asyncio.get_running_loop().time() < end, f"{name} did not get ready: {answer}"
        await asyncio.sleep(0.02)
