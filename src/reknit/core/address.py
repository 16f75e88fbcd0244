"""Addresses as text and back: `host:port`, and `[::1]:port` where the host is an IPv6 address.

The only place that takes such a text apart or puts one together; a colon is otherwise easily cut at the wrong place.
"""

from __future__ import annotations

import ipaddress

from reknit.core.errors import UsageError

Address = tuple[str, int]
"""Host, without brackets, and port."""


def join(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(text: str, default_port: int | None = None) -> Address:
    """Take `host:port` or `[host]:port` apart; a bare IPv6 address is a host without a port.

    Args:
        text: as a person or `join` wrote it.
        default_port: of a text without one; None: it must have one.

    Raises:
        UsageError: no host, no port where one is needed, or no port number.
    """
    text = text.strip()
    host, said = text, ""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise _unfit(text, "the bracket is not closed before the port")
        said = rest[1:]
        if rest == ":" or ":" not in host:
            raise _unfit(text, "brackets stand round an IPv6 address, with a port behind")
    elif text.count(":") == 1:
        host, _, said = text.partition(":")
        if not said:
            raise _unfit(text, "no port stands behind the colon")
    if not host or any(c.isspace() or c in "[]/@" for c in host):
        raise _unfit(text, "it names no host")
    if ":" in host and not _is_ipv6(host):
        raise _unfit(text, f"{host!r} is no IPv6 address")
    if not said:
        if default_port is None:
            raise _unfit(text, "it has no port")
        return host, default_port
    if not (said.isascii() and said.isdecimal() and 0 < int(said) < 65536):
        raise _unfit(text, f"{said!r} is no port number")
    return host, int(said)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _unfit(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} is not an address: {why}", hint="write HOST:PORT, or [::1]:PORT with an IPv6 address")
