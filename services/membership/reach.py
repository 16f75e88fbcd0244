"""Which nodes their neighbours cannot reach: the reports of gossip, counted by the H/L rule.

Each agent tells in its heartbeat whom of those that it watches it gets no answer from. A report counts while it is
renewed; the rings, and so who watches whom, follow from the nodes that take part in the gossip.
"""

from __future__ import annotations

import functools

from reknit.gossip.preset import PRESETS, TRAIN, Preset
from reknit.gossip.tally import Count, count, observers

from .view import Record, Sight

REPORT_FOR = 3.0
"""Seconds that a report counts without being renewed."""
NOBODY = Count({}, frozenset())


def reach(record: Record, sight: Sight, now: float) -> Count:
    """Count what agents report at this moment."""
    told = {node: silent for node, (at, silent) in sight.reports.items() if now - at < REPORT_FOR}
    reports = {node: silent for node, silent in told.items() if silent is not None}
    if not reports or record.spec is None:
        return NOBODY
    names = tuple(sorted(name for name, node in record.nodes.items() if node.gossip and not node.left))
    preset = PRESETS.get(record.spec.gossip, TRAIN)
    watched = _watched(names, preset)
    sick = frozenset(node for node, silent in told.items() if silent is None)
    return count({node: silent for node, silent in reports.items() if node in watched}, watched, preset, sick)


@functools.lru_cache(maxsize=16)
def _watched(names: tuple[str, ...], preset: Preset) -> dict[str, tuple[str, ...]]:
    return observers(names, preset)
