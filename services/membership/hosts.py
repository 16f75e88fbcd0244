"""Hosts that shall take part, where a script or a file lists them: who is not among them, how many workers each has.

A list says who stays, so whatever makes it doubtful drains nobody: a name that resolves to nothing may be anybody's,
and a list on which nobody is that is here is that of another cluster, or ahead of its time.
"""

from __future__ import annotations

from collections.abc import Mapping

from reknit.core.discovery import match
from reknit.core.events import ListedHost

from .topology import natural
from .view import Node, Record


def listed(record: Record, node: Node) -> ListedHost | None:
    """Return the listed host that a node is on."""
    return match.find(record.hosts, node.node, node.host, node.labels)


def unlisted(record: Record) -> tuple[Node, ...]:
    """Nodes that must leave: they take part and are on no host of the list."""
    there = {n.node: n for n in record.nodes.values() if not n.left}
    if not record.hosts or not there:
        return ()
    on = {name: listed(record, node) for name, node in there.items()}
    if match.unresolved(record.hosts, on.values()) or not any(on.values()):
        return ()
    return tuple(node for name, node in there.items() if on[name] is None and not node.draining)


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
        host = listed(record, node)
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
