"""Nodes whose gossip keys are not those of the others: nobody opens what they send, and they open nothing."""

from __future__ import annotations

from collections.abc import Iterable

from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

FRESH = 3.0
HOLD = 5.0
_HINT = (
    "give it the same --gossip-keys as all others (none, where they have none); an agent reads its file again every "
    "5 s, nothing has to be started anew. Until then its neighbours cannot say when it falls silent"
)


def differ(view: View, now: float) -> Iterable[Finding] | None:
    """A node refuses the datagrams of more nodes than it opens those of."""
    if view.status.finished is not None:
        return ()
    if view.deaf(now):
        return None
    return [
        Finding(
            "gossip-keys-differ",
            name,
            "warning",
            f"{name} has refused {node.pulse.refused} datagrams of {_nodes(node.pulse.refused_of)} lately, sealed with "
            f"keys that it does not have, and opened those of {node.pulse.opened_of}",
            _HINT,
            HOLD,
        )
        for name, node in view.status.nodes.items()
        if node.up and node.pulse is not None and node.heard is not None and now - node.heard <= FRESH
        if node.pulse.refused_of > node.pulse.opened_of
    ]


def _nodes(count: int) -> str:
    return "1 other node" if count == 1 else f"{count} other nodes"


RULES = (Rule(("gossip-keys-differ",), differ),)
