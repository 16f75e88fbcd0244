"""The address family of a host: IPv4 or IPv6, as a socket that shall listen there must know it."""

from __future__ import annotations

import socket


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family to listen with on a host: a name's first address tells.

    Raises:
        OSError: the name does not resolve.
    """
    if ":" in host:
        return socket.AF_INET6
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
