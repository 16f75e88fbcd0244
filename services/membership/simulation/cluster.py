"""The whole: clock, network, broker, membership services, nodes; and what can be done to them.

Used like this: `cluster = Cluster(nodes=200, seed=7)`, `cluster.begin()` (everybody is there, or with `storm` comes),
`cluster.run(5.0)`, `cluster.crash(cluster.draw(2), "power")`, `cluster.run(5.0)`, and look at `cluster.worlds`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias

from reknit.core.address import Address
from reknit.core.events import JobSubmitted, WorldChanged
from reknit.gossip.happening import Happening
from reknit.gossip.message import Packet
from reknit.gossip.preset import TRAIN, Preset
from reknit.gossip.roster import Roster, shared
from reknit.gossip.rumour import Rumour, State
from reknit.services.membership.decide import decide

from .broker import HOST, Broker, Entry
from .chance import Chance
from .clock import Clock
from .hub import JOB, Hub, Reach, Reducer
from .network import Network, Wall
from .node import SEEDS, Crash, Node
from .trace import Trace
from .training import Life, Training

STORM = 5.0
"""Seconds in which all nodes come when none is there at the beginning."""
SEALED = 28 + 48
"""Bytes that seal, UDP and IP add to a packet."""
WEIGHED = 16
"""One packet of so many is weighed, for all of them."""
RESETS = (0.001, 0.025)
"""Seconds until ring neighbours see that a peer's kernel closed the link."""
_COMMITS = 5.0
_STEADY = frozenset({"down", "frozen", "parted", "walled"})

Trouble: TypeAlias = Literal["down", "frozen", "parted", "walled", "lossy"]


class Cluster:
    """A simulated cluster.

    Attributes:
        clock: virtual time.
        network: paths; set `loss` and others directly.
        broker: the log.
        hubs: membership services.
        nodes: all nodes, there or not.
        training: the ring's oracle.
        preset: of the gossip.
        trace: what happened.
        worlds: (when, world), in the log's order.
        messages: packets that gossip has sent.
        bytes: their size on the wire, reckoned from a sample.
        false_gone: times that a node's view held a running, reachable node for dead.
        watchers: called with each node and what its gossip tells.
    """

    def __init__(
        self,
        *,
        nodes: int,
        seed: int,
        hubs: int = 1,
        preset: Preset = TRAIN,
        min_nodes: int = 1,
        reducer: Reducer = decide,
        tells_rtt: bool = False,
    ) -> None:
        self.chance = Chance(seed)
        self.clock = Clock()
        self.network = Network(self.chance.stream("network"))
        self.broker = Broker(self.clock, self.network)
        self.trace = Trace()
        self.training = Training(self.clock, self._takes_part)
        self.preset = preset
        self.run_id = "run1"
        self.tells_rtt = tells_rtt
        self.worlds: list[tuple[float, WorldChanged]] = []
        self.messages = 0
        self.bytes = 0
        self.false_gone = 0
        self.watchers: list[Callable[[Node, Happening], None]] = []
        self._min_nodes = min_nodes
        self._draw = self.chance.stream("faults")
        self.nodes = [Node(self, i, self.chance.stream(f"node/{i}")) for i in range(nodes)]
        self._at = {node.address: node for node in self.nodes}
        self._hosts = {node.address[0]: node for node in self.nodes}
        self._committed = 0
        self._weighed = 0
        self.broker.watchers += [self._on_entry, self.training.on_world]
        self.hubs = [
            Hub(self.broker, self.chance.stream(f"hub/{i}"), number=i, reach=self.reach, reducer=reducer)
            for i in range(hubs)
        ]

    # ------------------------------------------------------------------------------------------------- the beginning

    def begin(self, *, storm: bool = False) -> None:
        """Submit the job; all nodes are there already and known to each other, or (`storm`) come within seconds."""
        spec = JobSubmitted(
            run=self.run_id,
            script="train.py",
            min_nodes=self._min_nodes,
            max_nodes=len(self.nodes),
            max_restarts=1 << 30,
            gossip="fast" if self.preset.name == "fast" else "train",
        )
        self.broker.append(spec, self.run_id, None)
        if storm:
            for node in self.nodes:
                self.clock.after(STORM * self._draw.random(), self._storm_in, node)
        else:
            roster = self._roster()
            for node in self.nodes:
                node.boot(roster)
        for hub in self.hubs:
            hub.start()
        self.clock.after(_COMMITS, self._commit)

    def _storm_in(self, node: Node) -> None:
        if node.boots == 0:
            node.boot()

    def _roster(self) -> Roster:
        entries = {}
        digest = 0
        for node in self.nodes:
            said = Rumour(node.name, node.boots + 1, 0, int(State.ALIVE), *node.address, node.name)
            entries[node.name] = said
            digest ^= said.digest()
        return shared(entries, digest)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.run(self.clock.now + seconds)

    def doors(self, node: Node) -> list[Address]:
        """Addresses at which a node that boots knocks: of some that are there, as the log names them."""
        there = [other.address for other in self.nodes if other.up and other is not node]
        return self._draw.sample(there, min(SEEDS, len(there)))

    # ------------------------------------------------------------------------------------------------------ what is

    @property
    def world(self) -> WorldChanged | None:
        """The newest world."""
        return self.worlds[-1][1] if self.worlds else None

    def node_of(self, worker: str) -> Node:
        """The node of a worker."""
        return self.nodes[int(worker[1:].partition("-")[0])]

    def _takes_part(self, life: Life) -> bool:
        node = self.node_of(life[0])
        worker = node.worker
        return worker is not None and worker.lives and worker.life == life and not node.troubles & _STEADY

    def reach(self, address: str, draw: float) -> Reach:
        """How an address answers whoever dials it from the broker's host."""
        host, _, port = address.rpartition(":")
        node = self._hosts.get(host)
        if node is None or not node.powered or not self.network.is_open(HOST, node.host):
            return "silent"
        through = (1 - self.network.loss_between(HOST, node.host)) * (1 - self.network.loss_between(node.host, HOST))
        if draw >= through:
            return "silent"
        worker = node.worker
        listens = worker is not None and worker.lives and worker.registered and worker.address == f"{host}:{port}"
        return "open" if listens else "refused"

    def _on_entry(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, WorldChanged):
            self.worlds.append((self.clock.now, event))
            words = f"world {event.generation} {event.status} {len(event.members)} -{len(event.removed)}"
            words += f" +{len(event.added)} by {event.decided_by}: {event.reason}"
            self.trace.note(self.clock.now, words, keep=True)
            self.trace.note(self.clock.now, *(m.worker for m in event.members))
        else:
            self.trace.note(self.clock.now, entry.seq, entry.kind, entry.id)

    def _commit(self) -> None:
        self.clock.after(_COMMITS, self._commit)
        world = self.training.world
        if world is None or not world.members or self.training.halted is not None:
            return
        first = self.node_of(world.members[0].worker).worker
        event = self.training.committed(self._committed)
        if event is not None and first is not None and first.lives:
            self._committed = event.last + 1
            first.link.post(event, f"committed/{event.first}")

    # ------------------------------------------------------------------------------------------------------- packets

    def carry(self, node: Node, out: Sequence[tuple[Address, Packet]]) -> None:
        """Send packets of a node's gossip on their way."""
        self.messages += len(out)
        network, clock, at = self.network, self.clock, self._at
        source = node.address
        for address, packet in out:
            self._weighed += 1
            if self._weighed == WEIGHED:
                self._weighed = 0
                self.bytes += WEIGHED * (packet.size + SEALED)
            target = at.get(address)
            if target is None or node.muted or target.muted:
                continue
            for delay in network.datagram(node.host, target.host):
                clock.after(delay, target.receive, packet, source)

    def moved(self, node: Node, address: Address) -> None:
        """A node's gossip listens at another address from now on."""
        del self._at[node.address]
        node.address = address
        self._at[address] = node

    def on_happened(self, node: Node, happened: Sequence[Happening]) -> None:
        """A node's gossip tells something."""
        for what in happened:
            self.trace.note(self.clock.now, node.name, what.what, what.name)
            if what.what == "gone" and what.detail != "left":
                other = self.nodes[int(what.name[1:])]
                self.false_gone += not other.troubles and not node.troubles
            for watch in self.watchers:
                watch(node, what)

    # -------------------------------------------------------------------------------------------------------- faults

    def draw(self, number: int, *, among: Collection[Node] | None = None) -> list[Node]:
        """Draw nodes that are well, by number."""
        there = [n for n in (self.nodes if among is None else among) if n.up and not n.troubles]
        drawn = self._draw.sample(there, min(number, len(there)))
        return sorted(drawn, key=lambda n: n.index)

    def trouble(self, nodes: Collection[Node], what: Trouble) -> None:
        """Note that these are not well from now on."""
        for node in nodes:
            node.troubles.add(what)
        self.training.look()

    def relief(self, nodes: Collection[Node], what: Trouble) -> None:
        """Note that this is over."""
        for node in nodes:
            if what in node.troubles:
                node.troubles.discard(what)
                node.well_since = self.clock.now
        self.training.look()

    def note(self, words: str) -> None:
        """Write a fault down."""
        self.trace.note(self.clock.now, words, keep=True)

    def crash(self, nodes: Collection[Node], how: Crash) -> None:
        """These are gone at this moment."""
        there = [node for node in nodes if node.up]
        for node in there:
            if how == "killed":
                self._tell_neighbours(node)
            node.crash(how)
        self.trouble(there, "down")

    def restart(self, nodes: Collection[Node]) -> None:
        """Boot these again under their names; those that are up are cut off without a word first."""
        for node in nodes:
            if node.up:
                node.crash("power")
            node.boot()
        self.relief(nodes, "down")
        self.relief(nodes, "frozen")

    def kill_worker(self, node: Node) -> None:
        """Its worker's process is killed, the agent lives."""
        self._tell_neighbours(node)
        node.kill_worker()
        node.well_since = self.clock.now
        self.training.look()

    def _tell_neighbours(self, node: Node) -> None:
        """Links of a ring that runs are reset by the kernel."""
        world = self.training.world
        if world is None or world.status != "running" or node.worker is None:
            return
        names = [m.worker for m in world.members]
        if node.worker.name not in names or len(names) < 2:
            return
        at = names.index(node.worker.name)
        for peer, side in ((names[at - 1], "next"), (names[(at + 1) % len(names)], "previous")):
            worker = self.node_of(peer).worker
            if worker is not None:
                delay = RESETS[0] + (RESETS[1] - RESETS[0]) * self._draw.random()
                self.clock.after(delay, worker.lost_peer, node.worker.name, side)

    def freeze(self, nodes: Collection[Node], seconds: float) -> None:
        """All processes of these are stopped for so long."""
        for node in nodes:
            node.freeze()
            self.clock.after(seconds, self._thaw, node, node.boots)
        self.trouble(nodes, "frozen")

    def _thaw(self, node: Node, boots: int) -> None:
        if node.boots == boots and node.up:
            node.thaw()
            self.relief([node], "frozen")

    def part(self, nodes: Collection[Node], seconds: float) -> None:
        """Cut these off from all others, the broker among them, for so long."""
        hosts = [node.host for node in nodes]
        self.network.part(hosts)
        self.trouble(nodes, "parted")
        self.clock.after(seconds, self._heal, nodes)

    def _heal(self, nodes: Collection[Node]) -> None:
        self.network.heal([node.host for node in nodes])
        self.note("healed")
        self.relief(nodes, "parted")

    def wall_off(self, nodes: Collection[Node], seconds: float, direction: Literal["in", "out"]) -> None:
        """Nothing comes in to these, or nothing goes out from them, for so long."""
        own = [node.host for node in nodes]
        others = [HOST, *(n.host for n in self.nodes if n.host not in set(own))]
        wall = self.network.wall(others, own) if direction == "in" else self.network.wall(own, others)
        self.trouble(nodes, "walled")
        self.clock.after(seconds, self._unwall, wall, nodes)

    def _unwall(self, wall: Wall, nodes: Collection[Node]) -> None:
        self.network.tear_down(wall)
        self.relief(nodes, "walled")

    def lose_on_the_way_in(self, nodes: Collection[Node], share: float, seconds: float) -> None:
        """So much is lost of what these are sent, for so long."""
        for node in nodes:
            self.network.ingress[node.host] = share
        self.trouble(nodes, "lossy")
        self.clock.after(seconds, self._let_in, nodes)

    def _let_in(self, nodes: Collection[Node]) -> None:
        for node in nodes:
            self.network.ingress.pop(node.host, None)
        self.relief(nodes, "lossy")

    def mute(self, nodes: Collection[Node], seconds: float) -> None:
        """Gossip of these gets nowhere for so long, all else does: no reason to evict them."""
        for node in nodes:
            node.muted = True
            self.clock.after(seconds, self._unmute, node)

    @staticmethod
    def _unmute(node: Node) -> None:
        node.muted = False

    def starve(self, nodes: Collection[Node], seconds: float | None, late: tuple[float, float] = (0.5, 2.5)) -> None:
        """These read late, for so long or to the end; it is no reason to evict them."""
        for node in nodes:
            node.starved = late
            if seconds is not None:
                self.clock.after(seconds, self._feed, node)

    @staticmethod
    def _feed(node: Node) -> None:
        node.starved = None

    def outage(self, seconds: float) -> None:
        """The broker is away for so long."""
        self.broker.fail()
        self.clock.after(seconds, self._broker_back)

    def _broker_back(self) -> None:
        self.broker.recover()
        self.note("broker back")


__all__ = ["JOB", "Cluster", "Trouble"]
