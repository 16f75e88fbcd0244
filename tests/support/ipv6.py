"""Whether this machine speaks IPv6."""

from __future__ import annotations

import socket


def ipv6_here() -> bool:
    """True if something can listen on ::1."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
