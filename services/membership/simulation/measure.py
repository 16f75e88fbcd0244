"""Figures for whoever sizes a cluster: how soon a crash is a new world, and what it costs while nothing happens."""

from __future__ import annotations

import dataclasses

from reknit.gossip.preset import PRESETS

from .cluster import Cluster
from .invariants import Invariants
from .memberlist import Memberlist

WARM = 4.0
"""Seconds before the crash; messages are counted in the last of them."""
IDLE_FROM = 1.0
SECONDS = 6.0
"""Seconds that are looked at after the crash."""
BASELINE = 60.0
"""Seconds that memberlist gets at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What is to be simulated.

    Attributes:
        nodes: how many, one worker each.
        crash: how many vanish, 4 s after the beginning.
        loss: share lost on every path.
        seed: of all chance.
        preset: of the gossip.
        starved: share of nodes that read 0.5 to 2.5 s late.
        seconds: after the crash.
    """

    nodes: int
    crash: int = 1
    loss: float = 0.0
    seed: int = 1
    preset: str = "train"
    starved: float = 0.0
    seconds: float = SECONDS


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What came out; None: it did not happen in the time.

    Attributes:
        first_s: from the crash to the first world without one of the dead.
        last_s: to the world without all of them.
        known_s: until every worker that lives has heard of that world.
        world_changes: worlds after the crash.
        false_evictions: members taken out although their nodes were well.
        false_views: times that a node's view held another for dead that was well; evicts nobody.
        msgs_per_node_s: packets of gossip that a node sends a second while nothing happens.
        bytes_per_node_s: the same in bytes, with IP and UDP.
        peak_msgs_per_node_s: packets in the busiest second after the crash.
        world_bytes: size of the largest world.
        digest: of all that happened.
    """

    first_s: float | None
    last_s: float | None
    known_s: float | None
    world_changes: int
    false_evictions: int
    false_views: int
    msgs_per_node_s: float
    bytes_per_node_s: float
    peak_msgs_per_node_s: float
    world_bytes: int
    digest: str


def measure(order: Order) -> Figures:
    """Simulate reknit."""
    cluster = Cluster(nodes=order.nodes, seed=order.seed, preset=PRESETS[order.preset])
    invariants = Invariants(cluster)
    cluster.network.loss = order.loss
    cluster.begin()
    if order.starved:
        cluster.starve(cluster.draw(round(order.starved * order.nodes)), None)
    cluster.run(IDLE_FROM)
    messages, bytes_ = cluster.messages, cluster.bytes
    cluster.run(WARM - IDLE_FROM)
    per_node = order.nodes * (WARM - IDLE_FROM)
    idle = (cluster.messages - messages) / per_node, (cluster.bytes - bytes_) / per_node
    victims = cluster.draw(order.crash)
    dead = {node.worker.life for node in victims if node.worker is not None}
    crashed, before = cluster.clock.now, len(cluster.worlds)
    cluster.crash(victims, "power")
    peak, left = 0, order.seconds
    while left > 0:
        messages = cluster.messages
        cluster.run(min(1.0, left))
        peak, left = max(peak, cluster.messages - messages), left - 1.0
    worlds = cluster.worlds[before:]
    without = [
        (at, world.generation, dead & {(m.worker, m.incarnation) for m in world.members}) for at, world in worlds
    ]
    first = next((at - crashed for at, _, held in without if len(held) < len(dead)), None)
    last = next(((at - crashed, number) for at, number, held in without if dead and not held), None)
    known = cluster.training.heard.get(last[1]) if last is not None else None
    return Figures(
        first_s=_round(first),
        last_s=_round(last[0] if last is not None else None),
        known_s=_round(known - crashed if known is not None else None),
        world_changes=len(worlds),
        false_evictions=len(invariants.evictions),
        false_views=cluster.false_gone,
        msgs_per_node_s=round(idle[0], 1),
        bytes_per_node_s=round(idle[1]),
        peak_msgs_per_node_s=round(peak / max(1, order.nodes - order.crash), 1),
        world_bytes=invariants.largest,
        digest=cluster.trace.digest,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """The same of memberlist, which has no worlds: a change is a moment in which an observer's view changes.

    Attributes:
        first_s: from the crash until somebody holds one of the dead for dead.
        last_s: until everybody holds all of them for dead.
        world_changes: changes at one observer, in the median.
        false_evictions: members held for dead by somebody although they were there.
        msgs_per_node_s: datagrams that a node sends a second while nothing happens.
        bytes_per_node_s: the same in bytes.
    """

    first_s: float | None
    last_s: float | None
    world_changes: int
    false_evictions: int
    msgs_per_node_s: float
    bytes_per_node_s: float


def baseline(order: Order) -> Baseline:
    """Simulate memberlist with its settings for a LAN."""
    group = Memberlist(order.nodes, order.seed, loss=order.loss)
    if order.starved:
        for number in group.draw(round(order.starved * order.nodes)):
            group.peers[number].starved = (0.5, 2.5)
    group.run(IDLE_FROM)
    messages, bytes_ = group.messages, group.bytes
    group.run(WARM - IDLE_FROM)
    per_node = order.nodes * (WARM - IDLE_FROM)
    idle = (group.messages - messages) / per_node, (group.bytes - bytes_) / per_node
    victims = group.draw(order.crash)
    crashed = group.clock.now
    group.crash(victims)
    last = None
    most = BASELINE if victims else order.seconds
    while group.clock.now - crashed < most:
        group.run(0.1)
        if victims and group.all_know(victims):
            last = group.clock.now - crashed
            break
    first = group.first
    return Baseline(
        first_s=_round(first - crashed if first is not None else None),
        last_s=_round(last),
        world_changes=group.changes(crashed) if victims else 0,
        false_evictions=len(group.false_deaths),
        msgs_per_node_s=round(idle[0], 1),
        bytes_per_node_s=round(idle[1]),
    )


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
