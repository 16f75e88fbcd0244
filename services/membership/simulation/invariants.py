"""What must hold whatever goes wrong, checked at each change of the world and each word of a node's gossip.

* no live healthy node is evicted; what is evicted is dead, cut off or stopped, or was so within `GRACE`;
* every member that dies leaves the world, once, and does not come back;
* one sequence of worlds: each is the one before, less `removed`, plus `added`; each reader sees them all, in order;
* a refuted incarnation never dies: what a node holds about another only gets newer;
* services that have read the same log hold the same record;
* some time after the last fault everybody who is there is in the world, and in everybody's view, and nobody else.
"""

from __future__ import annotations

import dataclasses
import itertools

from reknit.core import wire
from reknit.core.events import NodeHeld, WorldChanged
from reknit.gossip.happening import Happening

from .broker import Entry
from .cluster import Cluster
from .node import Node
from .training import Life

PAYLOAD = 8 << 20
"""Bytes of a message that the broker takes at most."""
GRACE = 3.0
"""Seconds after its last trouble in which a node may still be evicted: it reconnects, the world is on its way."""


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be."""

    at: float
    rule: str
    words: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.at:.3f} {self.rule}: {self.words}"


class Invariants:
    """Looks at a cluster from outside; attach it before `begin`.

    Attributes:
        violations: what was found, in order.
        evictions: lives that were taken out while their nodes were well.
        largest: bytes of the largest world.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[Violation] = []
        self.evictions: list[Life] = []
        self.largest = 0
        self._members: frozenset[Life] = frozenset()
        self._generation = 0
        self._kept_out: dict[str, float] = {}
        self._buried: set[Life] = set()
        self._held: dict[tuple[int, int, str], tuple[int, int, int]] = {}
        cluster.broker.watchers.append(self._on_entry)
        cluster.watchers.append(self._on_happened)

    def _say(self, rule: str, words: str) -> None:
        violation = Violation(self._cluster.clock.now, rule, words)
        self.violations.append(violation)
        self._cluster.note(f"violation: {violation}")

    # -------------------------------------------------------------------------------------------------------- worlds

    def _on_entry(self, entry: Entry) -> None:
        if isinstance(entry.event, WorldChanged):
            self._world(entry.event)
        elif isinstance(entry.event, NodeHeld):
            self._kept_out[entry.event.node] = entry.event.until

    def _world(self, world: WorldChanged) -> None:
        now = [(m.worker, m.incarnation) for m in world.members]
        lives, names = frozenset(now), {m.worker for m in world.members}
        if len(names) != len(now):
            self._say("members", f"world {world.generation} names a worker twice")
        if world.generation != self._generation + 1:
            self._say("sequence", f"world {world.generation} follows {self._generation}")
        gone, come = self._members - lives, lives - self._members
        if {worker for worker, _ in gone} != set(world.removed) or {worker for worker, _ in come} != set(world.added):
            self._say("difference", f"world {world.generation} does not say who came and went")
        for life in sorted(gone):
            self._gone(life, world)
        for life in sorted(come & self._buried):
            self._say("dead for good", f"{life[0]} came back dead in world {world.generation}")
        self._members, self._generation = lives, world.generation
        size = len(wire.encode(world))
        self.largest = max(self.largest, size)
        if size > PAYLOAD:
            self._say("payload", f"world {world.generation} has {size} bytes")

    def _gone(self, life: Life, world: WorldChanged) -> None:
        node = self._cluster.node_of(life[0])
        if self._is_dead(life):
            self._buried.add(life)
            return
        if node.troubles or self._cluster.clock.now - node.well_since < GRACE:
            return
        self.evictions.append(life)
        about = "; ".join(e.detail for e in world.evidence if e.about == life[0])
        self._say("no healthy node is evicted", f"{life[0]} in world {world.generation}: {about or world.reason}")

    def _is_dead(self, life: Life) -> bool:
        worker = self._cluster.node_of(life[0]).worker
        return worker is None or worker.life != life or not worker.lives

    # -------------------------------------------------------------------------------------------------------- gossip

    def _on_happened(self, node: Node, what: Happening) -> None:
        if what.what not in ("joined", "gone", "refuted", "suspected") or node.gossip is None:
            return
        held = node.gossip.state(what.name)
        key = (node.index, node.boots, what.name)
        before = self._held.get(key)
        if held is None:
            return
        if before is not None and held.rank < before:
            self._say("views only get newer", f"{node.name} held {before} of {what.name}, now {held.rank}")
        self._held[key] = held.rank

    # ------------------------------------------------------------------------------------------------------ afterwards

    def order(self) -> None:
        """Each reader has seen the worlds one after the other."""
        for hub in self._cluster.hubs:
            self._consecutive(hub.name, hub.worlds)
        records = [hub.view.record for hub in self._cluster.hubs if hub.running]
        if any(record != records[0] for record in records[1:]):
            self._say("one log, one record", "two services hold different ones")
        for node in self._cluster.nodes:
            if node.worker is not None:
                self._consecutive(node.worker.name, node.worker.worlds)

    def _consecutive(self, who: str, worlds: list[int]) -> None:
        if any(after != before + 1 for before, after in itertools.pairwise(worlds)):
            self._say("seen in order", f"{who} saw {worlds}")

    def world_is_whole(self, *, final: bool = False) -> bool:
        """Everybody who is there is a member, and nobody else is; `final`: if not, that is a violation."""
        there = {n.worker.life for n in self._cluster.nodes if n.up and n.worker is not None and n.worker.lives}
        dead = sorted(life for life in self._members if self._is_dead(life))
        kept_out = {name for name, until in self._kept_out.items() if until > self._cluster.broker.wall}
        missing = sorted(life for life in there - self._members if self._cluster.node_of(life[0]).name not in kept_out)
        if final and dead:
            self._say("every crash is evicted", f"still members: {_some(dead)}")
        if final and missing:
            self._say("everybody is back", f"not members: {_some(missing)}")
        return not dead and not missing

    def views_are_equal(self, *, final: bool = False) -> bool:
        """All who are there hold each other for there, and nobody else; `final`: if not, that is a violation."""
        up = [(n.name, n.gossip) for n in self._cluster.nodes if n.up and n.gossip is not None]
        if len({gossip.digest for _, gossip in up}) == 1 and up[0][1].size == len(up):
            return True
        if not final:
            return False
        names = {name for name, _ in up}
        for name, gossip in up:
            alive = set(gossip.alive())
            missing, ghosts = sorted(names - alive), sorted(alive - names)
            if missing or ghosts:
                self._say("views are equal", f"{name} misses {_some(missing)}, holds {_some(ghosts)} for there")
                return False
        self._say("views are equal", "the same names, different lives")
        return False


def _some(items: list[Life] | list[str]) -> str:
    names = [item if isinstance(item, str) else f"{item[0]}/{item[1]}" for item in items]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nobody"
