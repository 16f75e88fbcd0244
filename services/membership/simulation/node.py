"""Twin of a node: its agent with the real gossip core, and its workers' processes.

It boots, beats, gossips, crashes, freezes and boots again under the same name. What is simplified: the agent's and the
worker's heartbeat leave at the same moment; a worker that dies is started again after a second, always.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Literal, TypeAlias

from reknit.core.address import Address
from reknit.core.events import AgentJoined, NodePulse, WorkerDying, WorkerExited, WorkerStarted
from reknit.gossip.gossip import Gossip
from reknit.gossip.identity import Self
from reknit.gossip.message import Packet
from reknit.gossip.roster import Roster

from .link import Link
from .worker import Worker

if TYPE_CHECKING:
    from .cluster import Cluster

BEAT = 0.25
START = (0.2, 1.0)
"""Seconds from the agent's start until a worker registers."""
RESTART = 1.0
"""Seconds until the agent starts a worker again that died."""
SOCKET = 256
"""Packets that wait in the socket of a process that is stopped; more are lost."""
SEEDS = 3
"""Addresses that a new node knocks at."""
PORT = 7946

Crash: TypeAlias = Literal["power", "killed"]
"""power: the host is gone and nothing says so; killed: all its processes are, and its kernel closes their sockets."""


class Node:
    """One host with an agent and its workers.

    Attributes:
        index: number, also its place in the network.
        name: its name in the job.
        address: of its gossip; another port each time it boots, as a free one is.
        boots: how often it was started: what belongs to an earlier life is void.
        up: its processes exist.
        frozen: they are stopped.
        powered: the host is there, so that its kernel answers.
        skew: seconds by which its wall clock is wrong.
        starved: seconds by which it reads late, at least and at most; None: it reads at once.
        muted: its gossip gets nowhere.
        troubles: what keeps it from being healthy now.
        well_since: since when there is none.
    """

    def __init__(self, cluster: Cluster, index: int, chance: random.Random) -> None:
        self._cluster = cluster
        self.clock = cluster.clock
        self.broker = cluster.broker
        self.training = cluster.training
        self.run = cluster.run_id
        self._random = chance
        self.index = index
        self.host = index
        self.name = f"n{index}"
        self.address: Address = (f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}", PORT)
        self.boots = 0
        self.up = False
        self.frozen = False
        self.powered = False
        self.skew = 0.0
        self.muted = False
        self.starved: tuple[float, float] | None = None
        self.troubles: set[str] = set()
        self.well_since = -math.inf
        self.gossip: Gossip | None = None
        self.worker: Worker | None = None
        self._link: Link | None = None
        self._incarnation = 0
        self._started = 0
        self._epoch = 0
        self._timer = math.inf
        self._reported = False
        self._socket: list[tuple[Packet, Address]] = []

    @property
    def running(self) -> bool:
        """Its processes execute."""
        return self.up and not self.frozen

    @property
    def worker_name(self) -> str:
        """Name of its worker."""
        return f"{self.name}-0"

    def wall_ms(self) -> int:
        """Its wall clock, milliseconds since the epoch."""
        return round((self.broker.wall + self.skew) * 1000)

    # ------------------------------------------------------------------------------------------------------- its life

    def boot(self, roster: Roster | None = None) -> None:
        """Start the agent and its worker.

        Args:
            roster: members known from the start: agent and worker are there already, and connected; None: they begin.
        """
        there = roster is not None
        self.boots += 1
        if self.boots > 1:
            self._cluster.moved(self, (self.address[0], PORT + (self.boots - 1) % 10_000))
        self.up, self.frozen, self.powered = True, False, True
        life = self.boots
        self._link = Link(
            self.broker,
            self._random,
            host=self.host,
            name=f"agent/{self.name}",
            runs=lambda: self.running and self.boots == life,
        )
        self._link.open(at_once=there)
        self._joined()
        self._gossip_begins(roster)
        self._start_worker(at_once=there)
        first = BEAT * self._random.random()
        self.clock.after(first, self._beat, life)

    def _joined(self) -> None:
        assert self._link is not None
        host, port = self.address
        event = AgentJoined(
            node=self.name, run=self.run, host=host, pid=self.index + 1, nproc=1, gossip=f"{host}:{port}"
        )
        self._link.post(event, f"joined/{self.name}/{self.boots}")

    def _start_worker(self, *, at_once: bool = False) -> None:
        assert self._link is not None
        self._started += 1
        self._incarnation = max(self.wall_ms() << 8, self._incarnation + 1)
        port = 20000 + self._incarnation % 20000
        worker = Worker(self, self.worker_name, self._incarnation, f"{self.address[0]}:{port}", self._random)
        worker.pid = 1000 + self._started
        self.worker = worker
        event = WorkerStarted(worker=worker.name, incarnation=worker.incarnation, node=self.name, pid=worker.pid)
        self._link.post(event, f"started/{worker.name}/{worker.incarnation}")
        if at_once:
            worker.start(at_once=True)
        else:
            self.clock.after(START[0] + (START[1] - START[0]) * self._random.random(), self._up, worker)

    def _up(self, worker: Worker) -> None:
        if worker.lives:
            worker.start()

    def crash(self, how: Crash) -> None:
        """Host or processes are gone."""
        self.up = self.frozen = False
        self.powered = how == "killed"
        self._socket.clear()
        for link in (self._link, self.worker.link if self.worker is not None else None):
            if link is not None:
                link.end(reset=how == "killed")
        if self.worker is not None:
            self.worker.lives = False

    def kill_worker(self) -> None:
        """Its worker's process is killed; the agent says so and starts it again."""
        worker = self.worker
        if worker is None or not worker.lives or self._link is None:
            return
        worker.end(reset=True)
        life = {"worker": worker.name, "incarnation": worker.incarnation, "node": self.name}
        self._link.post(WorkerDying(**life, pid=worker.pid), f"dying/{worker.name}/{worker.incarnation}")  # type: ignore[arg-type]
        self.clock.after(0.03, self._reaped, self.boots, worker)

    def _reaped(self, boots: int, worker: Worker) -> None:
        if boots != self.boots or not self.up or self._link is None:
            return
        exited = WorkerExited(
            worker=worker.name, incarnation=worker.incarnation, node=self.name, pid=worker.pid, code=-9
        )
        self._link.post(exited, f"exited/{worker.name}/{worker.incarnation}")
        self.clock.after(RESTART, self._start_again, boots)

    def _start_again(self, boots: int) -> None:
        if boots == self.boots and self.up:
            self._start_worker()

    def freeze(self) -> None:
        """All its processes are stopped."""
        self.frozen = True

    def thaw(self) -> None:
        """They run again, and find what has arrived since."""
        if not self.frozen:
            return
        self.frozen = False
        for link in (self._link, self.worker.link if self.worker is not None else None):
            if link is not None:
                link.resume()
        packets, self._socket = self._socket, []
        self._drive_timer()
        for packet, source in packets:
            self._take(packet, source)

    # ---------------------------------------------------------------------------------------------------- heartbeats

    def _beat(self, life: int) -> None:
        if life != self.boots or not self.up:
            return
        self.clock.after(BEAT, self._beat, life)
        if not self.running:
            return
        self.report()
        if self.worker is not None:
            self.worker.beat()

    def report(self) -> None:
        """Send the agent's heartbeat, with what its gossip says."""
        gossip = self.gossip
        if self._link is None or gossip is None:
            return
        rtt = {}
        for name in gossip.subjects:
            took = gossip.rtt(name)
            if took is not None:
                rtt[name] = round(took * 1000, 1)
        pulse = NodePulse(
            node=self.name,
            silent=tuple(sorted(gossip.silent)),
            sick=gossip.sick,
            view=gossip.digest,
            rtt=rtt if self._cluster.tells_rtt else {},
        )
        self._link.pulse(pulse)

    # -------------------------------------------------------------------------------------------------------- gossip

    def _gossip_begins(self, roster: Roster | None) -> None:
        self._epoch = self.boots  # as the log orders the arrivals of a name
        me = Self(self.name, self._epoch, self.address)
        seed = self._random.getrandbits(48)
        seeds = () if roster is not None else self._cluster.doors(self)
        self.gossip = Gossip(me, preset=self._cluster.preset, seed=seed, now=self.clock.now, seeds=seeds, roster=roster)
        self._timer = math.inf
        self._after()

    def receive(self, packet: Packet, source: Address) -> None:
        """A packet arrives at its socket."""
        if not self.up or self.gossip is None:
            return
        if self.frozen:
            if len(self._socket) < SOCKET:
                self._socket.append((packet, source))
        elif self.starved is None:
            self._take(packet, source)
        else:
            least, most = self.starved
            late = least + (most - least) * self._random.random()
            self.clock.after(late, self._read_late, packet, source, self.boots)

    def _read_late(self, packet: Packet, source: Address, boots: int) -> None:
        if boots == self.boots and self.up:
            if self.frozen:
                self._socket.append((packet, source))
            else:
                self._take(packet, source)

    def _take(self, packet: Packet, source: Address) -> None:
        gossip = self.gossip
        if gossip is not None:
            gossip.on_packet(self.clock.now, packet, source)
            if gossip.due() <= self.clock.now:
                gossip.on_timer(self.clock.now)
            self._after()

    def _on_timer(self, life: int, when: float) -> None:
        if life != self.boots or when != self._timer or not self.up:
            return
        self._timer = math.inf
        if not self.frozen:
            self._drive_timer()

    def _drive_timer(self) -> None:
        gossip = self.gossip
        if gossip is not None:
            if gossip.due() <= self.clock.now:
                gossip.on_timer(self.clock.now)
            self._after()

    def _after(self) -> None:
        """Send what the core has to send, look at what has happened, wind the timer."""
        gossip = self.gossip
        assert gossip is not None
        out = gossip.transmit()
        if out:
            self._cluster.carry(self, out)
        happened = gossip.happened()
        if happened:
            if any(h.what == "report" for h in happened) and self.running:
                self.report()
            self._cluster.on_happened(self, happened)
        due = gossip.due()
        if due < self._timer:
            self._timer = due
            self.clock.at(due, self._on_timer, self.boots, due)
