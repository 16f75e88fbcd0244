"""Brokers by their addresses: how they are shown, which one is tried next, how their connections are told apart."""

from __future__ import annotations

import random
import zlib
from typing import Any
from urllib.parse import urlsplit

from nats.aio.client import Server

RECONNECT_WAIT = 0.1
"""Seconds between two tries, about."""


def shown(url: str) -> str:
    """Return a URL (or a comma-separated list of them) without user and password."""
    parts = []
    for part in url.split(","):
        found = urlsplit(part.strip())
        parts.append(
            part.strip().replace(f"{found.netloc.rpartition('@')[0]}@", "") if "@" in found.netloc else part.strip()
        )
    return ",".join(parts)


def connection_id(server: str, number: int) -> int:
    """A connection's number that is unique among the servers of a cluster, each of which counts from 1.

    Args:
        server: the server's id.
        number: its number there, 0: none.
    """
    return zlib.crc32(server.encode()) << 31 | number & 0x7FFFFFFF if number else 0


def choose(servers: list[Server], _info: dict[str, Any]) -> tuple[Server | None, float]:
    """Least tried first, after a pause with jitter: a thousand clients must not come back in the same millisecond."""
    server = min(servers, key=lambda s: s.reconnects)
    wait = RECONNECT_WAIT * min(1.0 + server.reconnects / 20, 5.0)
    return server, random.uniform(0.2, 1.0) * wait
