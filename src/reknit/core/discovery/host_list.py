"""The hosts that shall take part, as lines: `host` or `host:slots`, as Horovod's discovery scripts print them."""

from __future__ import annotations

import ipaddress
import re

from reknit.core.errors import UsageError

MOST_HOSTS = 10_000
MOST_SLOTS = 1024
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?")


def parse(text: str) -> dict[str, int]:
    """Read a list of hosts; empty lines and what stands behind `#` are not read.

    An IPv6 address with a number of workers stands in brackets: `[fd00::7]:4`.

    Returns:
        Host -> workers it shall have; 0: as many as it would have anyway.

    Raises:
        UsageError: a line is not `host` or `host:slots`, or a host is there twice; the text names the line. A list with
            a bad line is not used in part: hosts that are missing from it would be drained. Nor is one that is empty,
            which is more likely a failure of whatever makes it.
    """
    hosts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        host, slots = _line(said, number)
        if host in hosts:
            raise _bad(number, said, f"{host} is there twice")
        hosts[host] = slots
        if len(hosts) > MOST_HOSTS:
            raise _bad(number, said, f"there are more than {MOST_HOSTS} hosts")
    if not hosts:
        raise UsageError("the list of hosts is empty", hint="`reknit stop` ends a job; a list names at least one host")
    return hosts


def _line(said: str, number: int) -> tuple[str, int]:
    host, slots = said, ""
    if said.startswith("["):
        host, closed, rest = said[1:].partition("]")
        if not closed:
            raise _bad(number, said, "the bracket is not closed")
        if rest and not rest.startswith(":"):
            raise _bad(number, said, "a colon and a number stand behind the bracket")
        slots = rest[1:]
        counted = bool(rest)
    elif said.count(":") == 1:
        host, _, slots = said.partition(":")
        counted = True
    else:
        counted = False
    if counted and not (slots.isascii() and slots.isdecimal() and 0 < int(slots) <= MOST_SLOTS):
        raise _bad(number, said, f"{slots!r} is no number of workers (1 to {MOST_SLOTS})")
    if ":" in host:
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise _bad(number, said, f"{host!r} is no IPv6 address") from None
    elif not _NAME.fullmatch(host):
        raise _bad(number, said, f"{host!r} is no name of a host")
    return host, int(slots) if slots else 0


def _bad(number: int, said: str, why: str) -> UsageError:
    shown = said if len(said) <= 80 else said[:79] + "…"
    return UsageError(
        f"line {number} of the list of hosts, {shown!r}: {why}", hint="write one HOST or HOST:SLOTS a line"
    )
