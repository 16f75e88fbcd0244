"""This machine: addresses and names as peers can use them, and how much memory is free."""

from __future__ import annotations

import contextlib
import re
import socket
import urllib.parse
from pathlib import Path

from reknit.core.errors import UsageError
from reknit.core.settings import MAX_NODE

LOOPBACK = "127.0.0.1"


def route_to(url: str) -> str:
    """The address of this machine on the route to a broker: what peers that use the same broker can reach.

    A host's own name is no help: it often resolves to 127.0.1.1, or nowhere else than on the host itself. Of several
    brokers the first one counts to which there is a route off this machine.
    """
    routes = [_route_to(part.strip()) for part in url.split(",")]
    return next((route for route in routes if not is_loopback(route)), routes[0])


def _route_to(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or LOOPBACK, parts.port or 4222
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return LOOPBACK
    for family, _, _, _, address in found:  # a name may have addresses of a kind that this machine has no route to
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return LOOPBACK


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the address."""
    return host in {"localhost", "::1"} or host.startswith("127.")


def check_host(host: str) -> None:
    """See that this machine has the address that others are to reach it at.

    Raises:
        UsageError: nothing here can listen on it.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError as error:
        raise UsageError(
            f"this machine cannot listen on {host!r}: {error.strerror or error}",
            hint="give one of its own addresses with --host (`hostname -I` lists them)",
        ) from error


def available_memory() -> int:
    """Bytes that new processes can have without swapping, as the kernel says; 0: it does not."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def node_name() -> str:
    """A name for this node from the host's name."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().partition(".")[0]).strip("-_")
    return name[: MAX_NODE - 4].rstrip("-_") or "node"
