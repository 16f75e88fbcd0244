"""Which host of a list a node is on. Pure: names were resolved where the list was read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reknit.core.events import ListedHost
from reknit.core.labels import HOSTNAME


def find(hosts: Iterable[ListedHost], node: str, address: str, labels: Mapping[str, str]) -> ListedHost | None:
    """Return the listed host that a node is on, None if it is on none of them.

    Args:
        hosts: the list.
        node: the node's name.
        address: at which it is reached.
        labels: what it says of itself; `hostname` is its host's own name.
    """
    listed = list(hosts)
    own = labels.get(HOSTNAME, "")
    for host in listed:
        if host.host in {node, address, own} or address in host.addresses:
            return host
    return next((host for host in listed if own and _same_but_for_the_domain(host.host, own)), None)


def unresolved(hosts: Sequence[ListedHost], found: Iterable[ListedHost | None]) -> tuple[str, ...]:
    """Return listed hosts of which nobody can tell whether a node is on them: no address, and no node of that name."""
    known = {host.host for host in found if host is not None}
    return tuple(h.host for h in hosts if not h.addresses and h.host not in known)


def _same_but_for_the_domain(a: str, b: str) -> bool:
    """`n7` and `n7.example.org`: one of them says no domain. Names of digits are no names, but parts of an address."""
    short, long = sorted((a.rstrip("."), b.rstrip(".")), key=len)
    return "." not in short and not short.isdecimal() and long.startswith(f"{short}.")
