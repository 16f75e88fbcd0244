"""Memory: a worker grows towards the end of its node's free memory."""

from __future__ import annotations

from collections.abc import Iterable

from reknit.services.monitor.finding import Finding, Rule
from reknit.services.monitor.view import View

SOON = 600.0
"""Seconds to the end of the free memory at the present growth."""
LEAST_GROWTH = 64 << 20
HOLD = 10.0
RELEASE = 30.0
MIB = 1 << 20


def growth(view: View, now: float) -> Iterable[Finding] | None:
    """A node's workers fill its free memory within SOON; named is the one that grows fastest."""
    if view.status.finished is not None:
        return ()
    if view.deaf(now) or view.since_listening(now) < SOON / 10:
        return None
    return [f for node in view.status.nodes for f in _on_node(view, node)]


def _on_node(view: View, node: str) -> Iterable[Finding]:
    pulse = view.status.nodes[node].pulse
    if pulse is None or pulse.memory_free <= 0:
        return
    slopes = {
        w.worker: slope
        for w in view.status.members
        if w.node == node and (t := view.trends.get(w.worker)) and t.grown >= LEAST_GROWTH
        if (slope := t.slope()) is not None and slope > 0
    }
    if not slopes:
        return
    left = pulse.memory_free / sum(slopes.values())
    if left < SOON:
        fastest = max(slopes, key=lambda w: (slopes[w], w))
        pace, free = slopes[fastest] * 60 / MIB, pulse.memory_free // MIB
        reason = (
            f"{fastest} on {node} grows by {pace:.0f} MiB a minute; "
            f"the {free} MiB that are free there last for about {left / 60:.0f} minutes"
        )
        hint = f"reknit drain {fastest} replaces it before the kernel kills it"
        yield Finding("memory-growth", fastest, "warning", reason, hint, HOLD, RELEASE)


RULES = (Rule(("memory-growth",), growth),)
