"""Brokers and buses for tests: real ones, closed whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from reknit.core.broker import Broker, binary
from reknit.core.bus import Bus, Received
from reknit.core.context import Endpoint
from reknit.core.events import JobScaled

DEADLINE = 30.0
"""Seconds after which a test gives up waiting; nothing is ever expected to need nearly that long."""


async def until(true: Callable[[], object], what: str = "it", timeout: float = DEADLINE) -> None:
    """Return as soon as `true()` is; fail after the deadline."""
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, f"{what} did not come within {timeout:g} s"
        await asyncio.sleep(0.005)


def wait_until(true: Callable[[], object], what: str = "it", timeout: float = DEADLINE) -> None:
    """The same for tests without a loop."""
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, f"{what} did not come within {timeout:g} s"
        time.sleep(0.005)


def numbered(n: int) -> JobScaled:
    """An event that carries a number."""
    return JobScaled(workers=n)


def numbers(received: list[Received]) -> list[int]:
    """The numbers of such events."""
    return [r.event.workers for r in received if isinstance(r.event, JobScaled)]


@contextlib.asynccontextmanager
async def joined(endpoint: Endpoint, source: str = "test", timeout: float = 10.0) -> AsyncIterator[Bus]:
    """A bus, closed at the end."""
    bus = await Bus.connect(endpoint, source=source, timeout=timeout)
    try:
        yield bus
    finally:
        await bus.close()


class PlainServer(Broker):
    """nats-server with a configuration of the test's own in place of ours (JSON is valid there)."""

    def __init__(self, store: Path, make: Callable[[dict[str, object]], None]) -> None:
        super().__init__(store)
        self._make = make

    def _config(self, port: int, credentials: object) -> str:
        import json

        config = json.loads(super()._config(port, credentials))  # type: ignore[arg-type]
        self._make(config)
        return json.dumps(config)


__all__ = ["Broker", "PlainServer", "binary", "joined", "numbered", "numbers", "until", "wait_until"]
