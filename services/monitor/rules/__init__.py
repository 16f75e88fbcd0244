"""All rules, one family a file. A rule looks at the view and says what is true now; it remembers nothing."""

from __future__ import annotations

from reknit.services.monitor.finding import Rule

from . import (
    checkpoints,
    divergence,
    failures,
    gossip_keys,
    loss,
    memory,
    neighbours,
    progress,
    silence,
    stragglers,
    worlds,
)

RULES: tuple[Rule, ...] = (
    *failures.RULES,
    *divergence.RULES,
    *loss.RULES,
    *worlds.RULES,
    *progress.RULES,
    *stragglers.RULES,
    *checkpoints.RULES,
    *silence.RULES,
    *memory.RULES,
    *neighbours.RULES,
    *gossip_keys.RULES,
)
