"""Hosts that shall take part, where a script or a file lists them: who is not among them, how many workers each has.

A list says who stays, so whatever makes it doubtful drains nobody: a name that resolves to nothing may be anybody's but
those whose own name was taken off the list, and a list on which nobody is that is here is that of another cluster, or
ahead of its time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from reknit.core.discovery import match
from reknit.core.events import ListedHost

from .topology import natural
from .view import Node, Record


def place(nodes: Mapping[str, Node], hosts: Sequence[ListedHost]) -> dict[str, Node]:
    """Return the nodes with the host of the list that each is on."""
    listed = match.Listed(hosts)
    return {name: _on(node, listed.find(node.node, node.host, node.labels)) for name, node in nodes.items()}


def _on(node: Node, host: ListedHost | None) -> Node:
    listed_as = host.host if host is not None else node.listed_as
    return dataclasses.replace(node, on=host, listed_as=listed_as)


def unlisted(record: Record) -> tuple[Node, ...]:
    """Nodes that must leave: they take part and are on no host of the list."""
    if not record.hosts:
        return ()
    there = [n for n in record.nodes.values() if not n.left]
    off = [n for n in there if n.on is None and not n.draining]
    if not off or all(n.on is None for n in there):
        return ()
    if not match.unresolved(record.hosts, (n.on for n in there)):
        return tuple(off)
    names = {host.host for host in record.hosts}
    return tuple(n for n in off if n.listed_as and n.listed_as not in names)


def room(record: Record) -> dict[str, int | None]:
    """Node that stays -> workers that it may have as the list says; None: the list does not say.

    Nodes on one host share its number evenly.
    """
    there = [n for n in record.nodes.values() if not n.left and not n.draining]
    there.sort(key=lambda n: natural(n.node))
    on: dict[str, list[str]] = {}
    slots: dict[str, int] = {}
    rooms: dict[str, int | None] = {}
    for node in there:
        host = node.on
        rooms[node.node] = None
        if host is not None and host.slots:
            on.setdefault(host.host, []).append(node.node)
            slots[host.host] = host.slots
    for name, nodes in on.items():
        base, extra = divmod(slots[name], len(nodes))
        rooms.update({node: base + (i < extra) for i, node in enumerate(nodes)})
    return rooms


def spread(workers: int, rooms: Mapping[str, int | None]) -> dict[str, int]:
    """Spread workers evenly over nodes, no more on one than it has room for; the earlier nodes get one more."""
    counts = dict.fromkeys(rooms, 0)
    left = workers
    while left > 0:
        open_ = [node for node, most in rooms.items() if most is None or counts[node] < most]
        if not open_:
            break
        # who still has room has as many as the others that have
        base = left // len(open_)
        for node in open_ if base else open_[:left]:
            most = rooms[node]
            more = max(base, 1) if most is None else min(max(base, 1), most - counts[node])
            counts[node] += more
            left -= more
    return counts
