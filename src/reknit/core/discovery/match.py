"""Which host of a list a node is on. Pure: names were resolved where the list was read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reknit.core.events import ListedHost
from reknit.core.labels import HOSTNAME


class Listed:
    """A list of hosts, by all that a host may be called; made once for a list, asked for each node."""

    def __init__(self, hosts: Sequence[ListedHost]) -> None:
        self._called: dict[str, ListedHost] = {}
        self._first_label: dict[str, list[ListedHost]] = {}
        for host in hosts:
            self._called.setdefault(host.host, host)
        for host in hosts:
            for address in host.addresses:
                self._called.setdefault(address, host)
            self._first_label.setdefault(host.host.partition(".")[0], []).append(host)

    def find(self, node: str, address: str, labels: Mapping[str, str]) -> ListedHost | None:
        """Return the listed host that a node is on, None if it is on none of them.

        Args:
            node: the node's name.
            address: at which it is reached.
            labels: what it says of itself; `hostname` is its host's own name.
        """
        own = labels.get(HOSTNAME, "")
        for said in (node, address, own):
            if said and said in self._called:
                return self._called[said]
        alike = self._first_label.get(own.partition(".")[0], []) if own else []
        return next((host for host in alike if _same_but_for_the_domain(host.host, own)), None)


def unresolved(hosts: Sequence[ListedHost], found: Iterable[ListedHost | None]) -> tuple[str, ...]:
    """Return listed hosts of which nobody can tell whether a node is on them: no address, and no node of that name."""
    known = {host.host for host in found if host is not None}
    return tuple(h.host for h in hosts if not h.addresses and h.host not in known)


def _same_but_for_the_domain(a: str, b: str) -> bool:
    """`n7` and `n7.example.org`: one of them says no domain. Names of digits are no names, but parts of an address."""
    short, long = sorted((a.rstrip("."), b.rstrip(".")), key=len)
    return "." not in short and not short.isdecimal() and long.startswith(f"{short}.")
