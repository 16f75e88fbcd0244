"""What membership knows of one job, frozen.

`Record` is what the log says: two services that read the same log hold equal records, and so does one that was killed
and started again. `Sight` is what this process sees for itself: heartbeats by its own clock, disconnect notices, when
it noticed what. Decisions need both; nothing in `Sight` is needed to go on after a restart, it fills again by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Literal

from reknit.core.events import (
    Evidence,
    JobFinished,
    JobStopAsked,
    JobSubmitted,
    ListedHost,
    Member,
    RingBroken,
    Terms,
    WorkerPulse,
    WorldChanged,
)

from .damping import Damper
from .linkage import Linkage
from .phi import Window

Life = tuple[str, int]
"""One life of a worker: its id and incarnation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Worker:
    """A worker that registered and was let in: its newest life."""

    worker: str
    incarnation: int
    node: str
    pid: int
    address: str
    client_id: int = 0
    has_state_of: int = -1
    seq: int = 0
    """Stream sequence of the registration: the order of arrival."""
    current: bool = False
    """This life has the state: it has caught up, in the ring or beside it, or was there at the beginning."""
    leaving: bool = False
    frozen: str = ""
    """Kernel process state as its agent reported it, empty when it runs."""
    unreachable: str = ""
    """Why a dial got no answer, empty when none was tried or it was answered."""

    @property
    def life(self) -> Life:
        """Id and incarnation."""
        return self.worker, self.incarnation

    def member(self, role: Literal["active", "spare"]) -> Member:
        """Return the worker as a member of a world."""
        return Member(
            worker=self.worker,
            incarnation=self.incarnation,
            node=self.node,
            pid=self.pid,
            address=self.address,
            role=role,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """A process that an agent forked; it may not have registered yet."""

    worker: str
    incarnation: int
    node: str


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """An agent's node."""

    node: str
    nproc: int
    client_id: int = 0
    seq: int = 0
    host: str = ""
    """Address that its agent is reached at."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gossip: str = ""
    """Address at which its agent takes gossip, empty if it takes none."""
    on: ListedHost | None = None
    """Of the newest list of hosts the one that it is on."""
    listed_as: str = ""
    """What a list called the host that it is on, or was on last."""
    left: bool = False
    lost: bool = False
    """Left, but not by its own word: its agent was found gone."""
    draining: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How one life of a worker ended."""

    how: Literal["died", "finished", "left", "evicted"]
    """died: unexpectedly; finished: the loop is done; left: as asked; evicted: found dead, may still run."""
    evidence: Evidence
    node: str = ""
    code: int | None = None
    """Exit status once the process was reaped."""
    complete: bool = False
    """Finished without having been asked to leave: the run's last step is applied."""
    step: int = -1
    state_hash: str = ""
    generation: int = 0
    """In which it finished; 0 for every other ending."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Something that went wrong by itself, in log order: what the root cause of a failed run is looked up in."""

    worker: str
    incarnation: int
    text: str
    """Last line of the traceback, or how the process ended."""
    step: int
    """Step it worked on, or the job's steps so far where unknown."""
    raised: bool = False
    """The script raised (as opposed to: was killed)."""
    registered: bool = False
    log: str = ""
    committed: int = 0
    """The job's committed steps at that moment."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What the log says about the present run of the job."""

    spec: JobSubmitted | None = None
    over: JobFinished | None = None
    terms: Terms | None = None
    """Of the first worker that was let in; all others are compared with it."""
    workers: Mapping[str, Worker] = dataclasses.field(default_factory=dict)
    started: Mapping[str, Started] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    endings: Mapping[Life, Ending] = dataclasses.field(default_factory=dict)
    refusals: Mapping[Life, str] = dataclasses.field(default_factory=dict)
    """Lives that must not be let in, and why."""
    refused: frozenset[Life] = frozenset()
    """Those that were told so."""
    inexact: Mapping[Life, str] = dataclasses.field(default_factory=dict)
    """Lives that were let in although their arithmetic differs, and in what."""
    inexact_told: frozenset[Life] = frozenset()
    """Those of which the job was told."""
    generation: int = 0
    """Of the newest world of the job, in this run or an earlier one."""
    world: WorldChanged | None = None
    """The newest world of this run."""
    at_work: int = 0
    """Oldest generation whose ring may still be at work: planned worlds wait for the end of a step in an older one."""
    world_seq: int = 0
    """Stream sequence of the job's newest `world.changed`, what the next one is compared with."""
    knit: bool = False
    """The members of the newest world, or some of them, have been linked: somebody has state."""
    breaks: tuple[RingBroken, ...] = ()
    """Reports of the present generation, in log order."""
    links: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    """Pair of workers (sorted) -> how often their link broke while both lived."""
    targets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Node -> workers that its agent was last told to keep."""
    targets_seq: int = 0
    """Stream sequence of the job's newest `world.targets`, what the next one is compared with."""
    relinks: int = 0
    """Generations of unchanged members in a row, without a step committed between."""
    linkage: Linkage = dataclasses.field(default_factory=Linkage)
    """What they have told of the links between the members."""
    apart: frozenset[str] = frozenset()
    """Workers that were put out because the ring was split, and have committed no step in a ring since."""
    committed: int = 0
    """Steps committed, the restored ones included."""
    base: int = 0
    """Step that the run began with: 0, or that of the checkpoint it was restored from."""
    began: bool = False
    """A step was committed in this run."""
    restarts: int = 0
    failures: tuple[Failure, ...] = ()
    scaled: int | None = None
    hosts: tuple[ListedHost, ...] = ()
    """Hosts that shall take part, as a script or file said last; () if nobody lists them."""
    drains: frozenset[str] = frozenset()
    """Nodes and workers that were asked to leave."""
    stop: JobStopAsked | None = None
    clock: float = 0.0
    """Newest time of the log that was seen, seconds since the epoch by the broker's clock; it never goes back."""
    dampers: Mapping[str, Damper] = dataclasses.field(default_factory=dict)
    """Node -> what it has cost so far by coming and going, and by failing."""
    kept_told: Mapping[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    """(node, kind) -> until when it was said to be kept out."""

    @property
    def run(self) -> str:
        """Id of the present run, empty before the first."""
        return self.spec.run if self.spec else ""

    @property
    def open(self) -> bool:
        """True while a run is submitted and not over."""
        return self.spec is not None and self.over is None

    @property
    def members(self) -> tuple[Member, ...]:
        """Members of the newest world of this run."""
        return self.world.members if self.world else ()

    @property
    def most_active(self) -> int:
        """How many active workers there may be."""
        if self.scaled is not None:
            return self.scaled
        return self.spec.max_nodes * self.spec.nproc_per_node if self.spec else 0

    def ending(self, member: Member | Worker | Started) -> Ending | None:
        """How this life of a worker ended, None while it goes on."""
        return self.endings.get((member.worker, member.incarnation))

    @property
    def lives(self) -> frozenset[Life]:
        """Lives of the members."""
        return frozenset((m.worker, m.incarnation) for m in self.members)

    def is_leaving(self, member: Member) -> bool:
        """True if the worker, or its node, was asked to leave."""
        worker = self.workers.get(member.worker)
        mine = worker is not None and worker.incarnation == member.incarnation and worker.leaving
        node = self.nodes.get(member.node)
        return mine or member.worker in self.drains or (node is not None and node.draining)

    def teaches(self, gone: Collection[str] = ()) -> bool:
        """True if a ring runs and somebody who has the state stays in it, so that a newcomer can learn beside it.

        Args:
            gone: members that are gone.
        """
        if not self.knit or self.world is None or self.world.status != "running":
            return False
        known = ((m, self.workers.get(m.worker)) for m in self.members if m.worker not in gone)
        return any(w is not None and w.current and w.incarnation == m.incarnation for m, w in known)

    def completed(self) -> bool:
        """True once a member has finished with every step applied: from then on the run only ends."""
        return any(e.complete for e in self.endings.values())

    def waiting(self) -> tuple[Worker, ...]:
        """Workers that registered and are not in the world, in order of arrival."""
        inside = self.lives
        out = [w for w in self.workers.values() if w.life not in self.endings and w.life not in inside]
        return tuple(sorted(out, key=lambda w: (w.seq, w.worker)))


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A targeted check under way: the worker's address is being dialled."""

    incarnation: int
    at: float
    urgent: bool
    """True after a disconnect: an answer is expected within milliseconds, a decision may wait for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """What this process sees; all times are its own monotonic seconds."""

    streams: Mapping[str, Window] = dataclasses.field(default_factory=dict)
    """Worker id, or `@` and node id -> its heartbeats."""
    pulses: Mapping[str, WorkerPulse] = dataclasses.field(default_factory=dict)
    """Worker -> its newest heartbeat."""
    working: Mapping[str, tuple[int, int, float]] = dataclasses.field(default_factory=dict)
    """Worker -> (incarnation, step, since when it computes that step)."""
    disconnected: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Worker id, or `@` and node id -> when the broker said that its connection ended."""
    checks: Mapping[str, Check] = dataclasses.field(default_factory=dict)
    noticed: Mapping[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    """(source, worker) -> when evidence of the log was heard: `ring` (first report), `frozen`, `unreachable`."""
    asked: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Id of a publication asked for and not heard yet -> when."""
    rtt: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """Node -> node -> round trip in milliseconds, from the first one's newest heartbeat that told any."""
    reports: Mapping[str, tuple[float, tuple[str, ...] | None]] = dataclasses.field(default_factory=dict)
    """Node -> when it said last whom it gets no answer from, and whom, None: it is sick; only of who misses some."""
    heard: float = 0.0
    """Last heartbeat of anybody."""
    world_at: float = -1e9
    breaks_since: float | None = None
    joins_since: float | None = None
    ready_since: float | None = None
    """Since when the minimum of nodes is there, while no ring exists."""
    ringless_since: float | None = None
    """Since when the run is without a ring."""
    gone: frozenset[str] = frozenset()
    """Members of the present world that are known to be gone."""
    gone_since: float = 0.0
    gone_changed: float = 0.0
    stop_since: float | None = None
    ahead: float = 0.0
    """The broker's clock less ours: what turns a time of the log into one of ours."""
    trace: str = ""
    """traceparent of the first evidence since the newest world."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """State of one job: the record, the sight, and who we are."""

    job: str
    proposer: str
    """Unique name of this process, part of the ids of the worlds it proposes."""
    record: Record = dataclasses.field(default_factory=Record)
    sight: Sight = dataclasses.field(default_factory=Sight)


def node_key(node: str) -> str:
    """Key of an agent's stream in `Sight`; `@` cannot begin a worker's name."""
    return f"@{node}"
