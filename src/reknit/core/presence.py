"""A service says that it is there: its entry in the registry, and its answers to NATS's own questions."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from reknit.core.bus import Bus
from reknit.core.registry import EVERY
from reknit.core.registry_entry import Entry, Health


def announce(
    bus: Bus,
    name: str,
    health: Callable[[], tuple[Health, str]],
    about: Mapping[str, Any],
    *,
    every: float = EVERY,
) -> None:
    """Keep it said, in the background, until the bus is closed; nothing of it can fail or hold up the service.

    Args:
        bus: connected.
        name: of the service.
        health: how well it is, and why in words.
        about: what else it knows of itself; `http` is where its page is.
        every: seconds between two renewals.
    """
    id_, version, since = secrets.token_hex(5), importlib.metadata.version("reknit"), time.time()
    node, pid = socket.gethostname(), os.getpid()

    def entries() -> list[Entry]:
        how, reason = health()
        return [
            Entry(
                kind="service",
                name=name,
                id=id_,
                node=node,
                address=str(about.get("http", "")),
                version=version,
                pid=pid,
                health=how,
                reason=reason,
                since=since,
            )
        ]

    bus.registry.register(f"service.{name}.{id_}", entries, every=every)
    bus.micro.announce(
        f"reknit-{name}", id_, version, metadata={"node": node, "pid": str(pid)}, data=lambda: dict(about)
    )
