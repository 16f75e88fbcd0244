"""Every figure of the protocol, in seconds unless said."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Preset:
    """Settings of the gossip core; all nodes of a job use the same.

    Attributes:
        name: as a user chooses it.
        rings: K, observers of each node.
        high: H, so many of K observers: out of reach.
        low: L, so many: unstable.
        interval: between two pings of a subject.
        silence: without any acknowledgement until a subject is silent.
        sick: share of silent subjects above which the fault is our own.
        probe: between two probes of SWIM, stretched by the own health.
        timeout: of a direct probe until others are asked.
        helpers: how many are asked.
        patience: after a probe without an answer until the member is suspected: a late answer counts, slow is not dead.
        suspicion: least time to refute, as a multiple of log10(n) probe intervals.
        suspicion_most: the same at most, as a multiple of the least.
        spread_every: between two rounds that only carry rumours.
        fanout: to how many each such round goes.
        retransmit: times a rumour is sent, as a multiple of log10(n + 1).
        sync: least time between two exchanges of what differs; digests are compared at every probe.
        reconnect: between two knocks at a member that is held for dead.
        tombstone: how long the dead are remembered as such.
        health: steps of the own health score.
    """

    name: str = "train"
    rings: int = 5
    high: int = 4
    low: int = 2
    interval: float = 0.5
    silence: float = 1.5
    sick: float = 0.6
    probe: float = 0.5
    timeout: float = 0.2
    helpers: int = 3
    patience: float = 2.0
    suspicion: float = 4.0
    suspicion_most: float = 6.0
    spread_every: float = 0.1
    fanout: int = 3
    retransmit: int = 6
    sync: float = 1.0
    reconnect: float = 5.0
    tombstone: float = 60.0
    health: int = 8

    def for_size(self, size: int) -> Preset:
        """Return the preset for so many nodes: K/H/L of 10/7/3 above a thousand (Suresh et al. 2018)."""
        if size <= LARGE or self.rings >= 10:
            return self
        return dataclasses.replace(self, rings=10, high=7, low=3)


LARGE = 1000
"""Nodes above which more observers are used."""

TRAIN = Preset()
"""The default: a silent host is out of reach after 1 to 1.5 s."""
FAST = Preset(name="fast", interval=0.25, silence=0.8, probe=0.25, timeout=0.1)
"""Twice the packets, 0.55 to 0.8 s: for networks that lose nothing."""
PRESETS: dict[str, Preset] = {p.name: p for p in (TRAIN, FAST)}
