"""Nodes that their neighbours cannot reach, and nodes that reach nobody, although we hear them.

Nobody is evicted for it: what carries their heartbeats works. The gossip between them does not, and so one kind of
evidence is missing for the day when something does fail.
"""

from __future__ import annotations

from collections.abc import Iterable

from reknit.gossip.preset import TRAIN
from reknit.gossip.tally import count, observers
from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

FRESH = 3.0
HOLD = 5.0
_HINT = "is UDP between the nodes let through? Gossip listens on a free port of each node's address"


def out_of_reach(view: View, now: float) -> Iterable[Finding] | None:
    """Enough neighbours get no answer from a node whose heartbeats come."""
    if view.status.finished is not None:
        return ()
    if view.deaf(now):
        return None
    heard = {
        name: node.pulse
        for name, node in view.status.nodes.items()
        if node.up and node.pulse is not None and node.heard is not None and now - node.heard <= FRESH
    }
    sick = [
        Finding(
            "node-sick", name, "warning", f"{name} gets no answer from most of the nodes that it watches", _HINT, HOLD
        )
        for name, pulse in heard.items()
        if pulse.sick
    ]
    reports = {name: pulse.silent for name, pulse in heard.items() if pulse.silent}
    if not reports:
        return sick
    found = count(reports, observers(heard, TRAIN), TRAIN).out
    return sick + [
        Finding(
            "node-out-of-reach",
            name,
            "warning",
            f"{', '.join(by)} get no answer from {name}, whose heartbeats come all the same: it stays",
            _HINT,
            HOLD,
        )
        for name, by in found.items()
        if name in heard
    ]


RULES = (Rule(("node-out-of-reach", "node-sick"), out_of_reach),)
