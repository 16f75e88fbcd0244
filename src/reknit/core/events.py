"""Every event and heartbeat that crosses the bus, as closed msgspec unions, one union an area.

Used like this: build a struct, publish it with `Bus.publish(job, event)`; a subscriber gets the struct back, typed.
The subject is derived from the struct (`subject_of`), never written by hand.

Rules that keep old bytes readable (tests/core/test_corpus.py holds bytes of every released shape):
a new field always has a default; a field is never renamed, re-typed or re-used; a tag is never changed.
Times in events are what the publisher measured with its own monotonic clock (durations, seconds); the wall time of
publishing travels in the CloudEvents header `ce-time` and is for people only, never for decisions.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=False):
    """Base of all durable events; the tag is `<area>.<what>` and so the tail of the subject."""


class Pulse(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of heartbeats: core NATS, never stored."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the records inside events."""


# ---------------------------------------------------------------------------------------------------------- parts


class Terms(Part, frozen=True):
    """What all workers of a run must agree on before one is let in; compared field by field, first difference named."""

    slots: int
    micro_batch: int
    samples: int
    epochs: int
    seed: int
    parameters: tuple[str, ...] = ()
    """One entry a tracked tensor, `name dtype shape`, in reduction order."""
    numerics: dict[str, str] = {}
    """The numeric contract: torch version, intra-op threads, ISA cap, flags that change bits."""
    canary: str = ""
    """Digest of what a fixed set of kernels gave on this machine; empty: not computed."""
    verify: bool = False
    """The weights are compared in every step: all workers do, or none."""
    transport: str = "tcp"
    """What adds up gradients."""


class Member(Part, frozen=True):
    """One worker in a world. `index` in the world's tuple is its place in the ring."""

    worker: str
    incarnation: int
    node: str
    pid: int
    address: str
    """`host:port` of the worker's ring listener."""
    role: Literal["active", "spare"] = "active"
    """active: may hold slots; spare: current state, no slots. Whether a member still *learns* is its own business."""


class Range(Part, frozen=True):
    """Slots `[first, end)` of a step, computed by one worker."""

    worker: str
    first: int
    end: int


class ListedHost(Part, frozen=True):
    """A host that shall take part."""

    host: str
    """As the list calls it."""
    slots: int = 0
    """Workers that its nodes shall have together; 0: as many as they have anyway."""
    addresses: tuple[str, ...] = ()
    """What the name resolves to where the list was read; () if it does not."""


class SlotNotFinite(Part, frozen=True):
    """A slot whose gradient or loss holds NaN or Inf."""

    slot: int
    worker: str
    """Who computed it."""
    samples: tuple[int, ...] = ()
    """Ids of its samples."""


class Scores(Part, frozen=True):
    """What some micro-batches of an evaluation measured, all of them the same metrics."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    """Numbers of the micro-batches."""
    sums: tuple[float, ...]
    """For each number, for each name."""
    weights: tuple[float, ...]
    """Likewise; the mean is the sum of all sums over the sum of all weights."""


class Evidence(Part, frozen=True):
    """One observation that speaks for or against a member."""

    about: str
    """Worker or node id."""
    source: Literal[
        "exit",
        "dying",
        "disconnect",
        "refused",
        "unreachable",
        "ring",
        "heartbeat",
        "progress",
        "frozen",
        "gossip",
        "leave",
        "join",
        "asked",
    ]
    observer: str
    detail: str = ""
    certain: bool = False


# ------------------------------------------------------------------------------------------------------------ job


class JobSubmitted(Event, frozen=True, tag="job.submitted"):
    """A run begins. A second one of the same name is accepted only after `job.finished`."""

    run: str
    """Unique id of this run of the job."""
    script: str
    args: tuple[str, ...] = ()
    slots: int = 0
    """0: the script's own number holds."""
    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int = 1
    spares: int = 0
    secret_check: str = ""
    """HMAC of the job's name under its secret: a node with another secret is refused before it starts anything."""
    checkpoint_dir: str = ""
    checkpoint_every_steps: int = 0
    checkpoint_every_seconds: float = 0.0
    checkpoint_keep: int = 3
    max_restarts: int = 100
    """Job-wide budget of worker restarts after failures."""
    stuck_after: float = 120.0
    """Seconds on one step, while others wait, until a worker counts as stuck."""
    last_call: float = 3.0
    """Seconds to wait for more workers once the minimum is there."""
    resume: bool = False
    """Begin from the newest checkpoint of the line of `resume_run`."""
    resume_run: str = ""
    """The earlier run that it goes on from; empty: that of the job's newest checkpoint."""
    verify_weights: bool = False
    """Compare the weights of all workers in every step, before it is committed."""
    transport: str = "tcp"
    """What adds up gradients: tcp, gloo or nccl."""
    numerics: Literal["strict", "relaxed"] = "strict"
    """strict: a worker whose arithmetic differs is refused; relaxed: it is let in, and the run is not exact."""
    chaos: bool = False
    """Workers obey `job.chaos`."""
    gossip: Literal["train", "fast", "off"] = "off"
    """Figures of the gossip between agents; off where there is one node at most."""


class HostsListed(Event, frozen=True, tag="job.hosts"):
    """The hosts that shall take part from now on, as a script or a file says; appended when that changes."""

    run: str
    hosts: tuple[ListedHost, ...]
    source: str = ""
    """Script or file, and the node that read it."""


class JobScaled(Event, frozen=True, tag="job.scaled"):
    """Somebody asked for another number of active workers in all."""

    workers: int


class DrainAsked(Event, frozen=True, tag="job.drain"):
    """Take a node or a worker out politely, at a step boundary."""

    target: str
    reason: str = ""


class JobStopAsked(Event, frozen=True, tag="job.stop"):
    """Stop the whole run: politely (drain all, last checkpoint) or at once."""

    reason: str = ""
    at_once: bool = False


class JobInexact(Event, frozen=True, tag="job.inexact"):
    """A worker whose arithmetic differs was let in (`numerics` is relaxed): the run is not exact any more."""

    run: str
    worker: str
    incarnation: int
    node: str
    difference: str
    """The first difference, in words."""


class JobDoubted(Event, frozen=True, tag="job.doubted"):
    """A step that a sole worker has committed may be wrong, and nobody can tell: who has it gives up its state."""

    run: str
    step: int
    """The first step in doubt."""
    worker: str
    """Who holds other weights for it."""
    reason: str = ""


class ChaosAsked(Event, frozen=True, tag="job.chaos"):
    """Somebody asked for a fault, to see it found; a worker obeys only if the job was submitted with `chaos`."""

    worker: str
    fault: Literal["flip-bit"]
    target: Literal["weights", "moments", "result"] = "weights"
    """weights: a parameter; moments: a tensor of the optimizer; result: the next result, before it is applied."""
    at_step: int = -1
    """Not before this step; -1: at once."""
    bit: int = -1
    """Which bit of all the target's bits, counted from its first byte; -1: one that the worker chooses."""


class JobFinished(Event, frozen=True, tag="job.finished"):
    """The run is over."""

    run: str
    outcome: Literal["completed", "failed", "stopped"]
    reason: str = ""
    step: int = 0
    state_hash: str = ""
    root_worker: str = ""
    """Where a failure began, if it failed."""


# ---------------------------------------------------------------------------------------------------- node, worker


class AgentJoined(Event, frozen=True, tag="node.joined"):
    """A node's agent is up."""

    node: str
    run: str
    host: str
    pid: int
    nproc: int
    client_id: int = 0
    """NATS client id of the agent's connection: ties `$SYS` disconnect notices to the node."""
    labels: dict[str, str] = {}
    """What the node says of itself, such as rack and zone: the ring goes through one place before it goes on."""
    gossip: str = ""
    """`host:port` at which the agent takes gossip, "" if it takes none."""


class AgentLeft(Event, frozen=True, tag="node.left"):
    """A node's agent goes or is gone; its workers ended before it."""

    node: str
    reason: str = ""
    arrival: int = 0
    """Sequence of the `node.joined` that this is the end of, where somebody else says it; 0: the newest."""
    joined: int = 0
    """The same where the agent says it itself; 0: not told."""
    swept: bool = False
    """Its guard says it, which kills all that is left of the node."""


class NodeHeld(Event, frozen=True, tag="node.held"):
    """New workers of a node are kept out of the world for a while; those that are in stay. Said by membership."""

    node: str
    run: str
    cause: Literal["flapping", "failing"]
    """flapping: the node comes and goes; failing: its workers fail again and again."""
    until: float
    """Seconds since the epoch by the broker's clock."""
    seconds: float = 0.0
    """How long it lasts in all."""
    count: int = 0
    """How often it came back, or failed."""
    reason: str = ""


class WorkerStarted(Event, frozen=True, tag="worker.started"):
    """The agent forked a worker process; it is not in any world yet."""

    worker: str
    incarnation: int
    node: str
    pid: int
    attempt: int = 0


class WorkerRegistered(Event, frozen=True, tag="worker.registered"):
    """The worker is ready to take part: model built, address bound, terms known."""

    worker: str
    incarnation: int
    node: str
    run: str
    pid: int
    address: str
    terms: Terms
    has_state_of: int = -1
    """The step whose weights this worker already holds (a member that was evicted and comes back), -1: none."""
    client_id: int = 0
    """NATS client id of the worker's connection."""


class WorkerDying(Event, frozen=True, tag="worker.dying"):
    """The kernel has begun to end the process: certain evidence. `worker.exited` follows with its status."""

    worker: str
    incarnation: int
    node: str
    pid: int
    expected: bool = False
    """True after a drain or stop."""
    others: dict[str, int] = {}
    """Worker -> pid: processes of the node that were sent SIGKILL too. Each is told of by an event of its own as well,
    but that takes its time, and one world shall do for all of them."""


class WorkerExited(Event, frozen=True, tag="worker.exited"):
    """The agent reaped the process: certain evidence."""

    worker: str
    incarnation: int
    node: str
    pid: int
    code: int = 0
    """Exit status, or minus the signal's number."""
    signal: str = ""
    out_of_memory: bool = False
    stderr_tail: str = ""
    seconds_alive: float = 0.0
    last_step: int = -1
    expected: bool = False
    """True after a finish, drain or stop."""
    log: str = ""
    """Path of the worker's log on its node."""


class WorkerFailed(Event, frozen=True, tag="worker.failed"):
    """The user's script raised."""

    worker: str
    incarnation: int
    error: str
    traceback: str
    step: int = -1
    slot: int = -1
    samples: tuple[int, ...] = ()


class WorkerLeaving(Event, frozen=True, tag="worker.leaving"):
    """The worker asks to be planned out (drain, SIGTERM); it goes on computing until it is out of the world."""

    worker: str
    incarnation: int
    reason: str = ""
    idle: bool = False
    """True: it has no slots any more; the next world is made without it."""


class WorkerCaughtUp(Event, frozen=True, tag="worker.caught_up"):
    """A learner has applied every result: it is current and may be given slots."""

    worker: str
    incarnation: int
    generation: int
    step: int
    seconds: float = 0.0


class WorkerFinished(Event, frozen=True, tag="worker.finished"):
    """The worker left the step loop with the last step applied."""

    worker: str
    incarnation: int
    generation: int
    step: int
    state_hash: str = ""


class WorkerStuck(Event, frozen=True, tag="worker.stuck"):
    """The agent sees that a process does not run (stopped, uninterruptible) although it exists."""

    worker: str
    incarnation: int
    node: str
    state: str
    """Process state letter of the kernel and its meaning: `T stopped`, `D uninterruptible`; `R running` clears it."""
    seconds: float = 0.0


class WorkerDiverged(Event, frozen=True, tag="worker.diverged"):
    """A worker held other bits than the others; nothing it computed with them was committed, and it learns anew."""

    worker: str
    incarnation: int
    node: str
    generation: int
    step: int
    what: Literal["result", "weights", "state"]
    """result: of that step, by its chain; weights: those the step was computed with; state: after the last step."""
    digest: int
    right: int
    """The others' digest."""
    by: Literal["majority", "own"] = "majority"
    """majority: more than half of the others agree; own: the worker saw its own bits change."""
    observer: str = ""
    """The worker that tells it."""


class WorkerUnreachable(Event, frozen=True, tag="worker.unreachable"):
    """Membership dialled the worker's address after a hint that it is gone."""

    worker: str
    incarnation: int
    address: str
    refused: bool = False
    """True: nobody listens there any more, so the process is gone; False: no answer, which alone proves nothing."""
    error: str = ""
    observer: str = ""


# ------------------------------------------------------------------------------------------------------ ring, world


class RingBroken(Event, frozen=True, tag="ring.broken"):
    """A ring link failed under the worker."""

    worker: str
    incarnation: int
    generation: int
    step: int
    peer: str
    side: Literal["previous", "next"]
    error: str = ""
    unmade: bool = False
    """The link could not be made at all; False: it was made, and then it broke."""


class RingLinked(Event, frozen=True, tag="ring.linked"):
    """Ring linked and roll call done, as this worker saw it."""

    worker: str
    incarnation: int
    generation: int
    step: int
    link_seconds: float = 0.0
    roll_call_seconds: float = 0.0
    decision: str = ""
    """The roll call's decision in words: furthest result, what is sent again, orphaned slots and who takes them."""


class RingRecovered(Event, frozen=True, tag="ring.recovered"):
    """First step committed in a new generation (published by the worker that owns slot 0)."""

    worker: str
    generation: int
    step: int
    seconds: float
    """From this worker's first notice of the break to the commit."""
    computed_again: int = 0
    """Slots that the roll call had orphaned."""


class WorldChanged(Event, frozen=True, tag="world.changed"):
    """The whole world. Appended with compare-and-set on the previous one: exactly one world can follow another."""

    generation: int
    run: str
    status: Literal["running", "paused", "finished"]
    members: tuple[Member, ...] = ()
    """In ring order."""
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()
    decided_by: str = ""
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    awaiting: str = ""
    """When paused: what is missing, in words."""
    leaving: tuple[str, ...] = ()
    """Members that shall get no slots from the next plan on."""
    targets: dict[str, int] = {}
    """Of older logs; today `world.targets` says it without a new world."""
    restarts: int = 0
    """Job-wide restarts after failures so far."""
    planned: bool = False
    """Nobody of the world before is lost: who is linked in that one finishes its step there and goes over at a step
    boundary. False: the links of the world before are dead or in doubt."""
    apart: tuple[str, ...] = ()
    """Those of `removed` that live and were put out because no ring with them could be linked."""


class TargetsSet(Event, frozen=True, tag="world.targets"):
    """How many workers each node shall keep. Appended with compare-and-set on the previous one; the world stays."""

    run: str
    targets: dict[str, int] = {}
    """Node -> number of workers that its agent shall keep alive; a node that is not named keeps what it has."""
    reason: str = ""
    decided_by: str = ""
    spares: int = 0
    """How many of the job's workers are spares: where fewer are kept, so many spares stay, and actives go first."""


class WorkerRefused(Event, frozen=True, tag="world.refused"):
    """A worker or node is not let in, and why; the agent does not retry it blindly."""

    worker: str
    incarnation: int
    reason: str
    final: bool = True


# ----------------------------------------------------------------------------------------------------------- shards


class ShardsPlanned(Event, frozen=True, tag="shards.planned"):
    """Who computes which slots in steps that begin under (generation, version)."""

    generation: int
    version: int
    slots: int
    ranges: tuple[Range, ...]
    """In ring order, contiguous, covering [0, slots)."""
    reason: str = ""


class StepsCommitted(Event, frozen=True, tag="shards.committed"):
    """Ledger records of steps [first, last], all with the same owners; published by the worker that owns slot 0."""

    run: str
    first: int
    last: int
    generation: int
    ranges: tuple[Range, ...]
    """Who computed which slots (after orphans were taken over); must cover [0, slots)."""
    slots: int
    chains: tuple[int, ...] = ()
    """One 64-bit result chain a step: chain[t] = xxh3(chain[t-1], reduced result of t). Equal on all workers."""
    loss: float | None = None
    """Global mean loss of the last of these steps."""
    computed_again: int = 0


class StepNotFinite(Event, frozen=True, tag="shards.not_finite"):
    """A step's gradient or loss holds NaN or Inf, and where from; at most one a second, by the owner of slot 0."""

    run: str
    step: int
    generation: int
    slots: tuple[SlotNotFinite, ...]
    loss: float | None = None
    """Global mean loss of the step."""
    steps: int = 1
    """How many such steps there were since the event before, this one included."""


class EpochFinished(Event, frozen=True, tag="shards.epoch"):
    """Every sample of an epoch is in exactly one committed step."""

    run: str
    epoch: int
    steps: int
    samples: int


# ------------------------------------------------------------------------------------------------------- checkpoint


class CheckpointRequested(Event, frozen=True, tag="checkpoint.requested"):
    """The service asks for a checkpoint; the ring agrees on the step."""

    checkpoint: str
    """Id, unique in the job."""
    at_step: int = 0
    """Not before this many committed steps."""
    reason: str = ""
    reassigned: dict[str, tuple[int, ...]] = {}
    """Worker -> chunk numbers, when a writer was lost: same id, only these chunks."""


class CheckpointWritten(Event, frozen=True, tag="checkpoint.written"):
    """One file of a checkpoint is durable (file and directory fsynced)."""

    checkpoint: str
    step: int
    """Steps committed in this state: the next step to run."""
    worker: str
    file: str
    """Name inside the checkpoint's directory."""
    chunk: int
    """Number of the chunk, -1 for the index."""
    chunks: int
    """How many chunks the state has in all."""
    bytes: int
    hash: str
    """xxh3-128, hex."""
    generation: int = 0
    chain: int = 0
    seconds: float = 0.0
    writers: tuple[str, ...] = ()
    """Who holds a copy of this state, in ring order: `core.manifest.assign` among them says who writes what."""


class CheckpointHeld(Event, frozen=True, tag="checkpoint.held"):
    """A worker that has no file to write holds a copy of the state: it can take over from one that dies."""

    checkpoint: str
    step: int
    """Steps committed in this state: the next step to run."""
    worker: str
    chunks: int
    """How many chunks the state has in all."""
    generation: int = 0
    chain: int = 0
    writers: tuple[str, ...] = ()
    """Who holds a copy of this state, in ring order."""


class CheckpointCommitted(Event, frozen=True, tag="checkpoint.committed"):
    """The manifest is durable: from now on this checkpoint exists."""

    checkpoint: str
    step: int
    path: str
    bytes: int
    seconds: float
    parent: str = ""


MAKES_WAY = "the job stops before step"
"""How the reason begins if a checkpoint that was asked for at a later step makes way for the last one."""


class CheckpointFailed(Event, frozen=True, tag="checkpoint.failed"):
    """A checkpoint was given up; the one before it is untouched."""

    checkpoint: str
    reason: str
    step: int = -1
    worker: str = ""


class CheckpointRestored(Event, frozen=True, tag="checkpoint.restored"):
    """A run without any live state begins from a checkpoint (or from step 0: `checkpoint` is empty)."""

    run: str
    checkpoint: str
    step: int
    worker: str
    generation: int
    chain: int = 0
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that did not verify, each with the reason."""


class CheckpointDeleted(Event, frozen=True, tag="checkpoint.deleted"):
    """Retention removed a checkpoint of this job."""

    checkpoint: str
    reason: str = ""


# ------------------------------------------------------------------------------------------------------- evaluation


class EvaluationPart(Event, frozen=True, tag="evaluation.part"):
    """Micro-batches of an evaluation that a worker has measured; if two measured the same one, the first counts."""

    run: str
    evaluation: str
    """Id: place in the run (steps, result chain), name, and what is measured."""
    step: int
    """Committed steps in the state that is measured."""
    worker: str
    generation: int
    scores: tuple[Scores, ...]


class EvaluationFinished(Event, frozen=True, tag="evaluation.finished"):
    """All micro-batches of an evaluation are measured."""

    run: str
    evaluation: str
    step: int
    worker: str
    """Who says so; all workers have the same means."""
    name: str = ""
    means: dict[str, float] = {}
    samples: int = 0
    seconds: float = 0.0


class EvaluationDiffers(Event, frozen=True, tag="evaluation.differs"):
    """Two workers measured the same and got different values: their weights or their arithmetic differ."""

    run: str
    evaluation: str
    step: int
    micro_batches: tuple[int, ...]
    worker: str
    """Whose values came second and were not used."""
    first: str
    """Whose value counts, of the first of these micro-batches."""
    detail: str = ""
    """What differs in the first of them."""


# ---------------------------------------------------------------------------------------------------------- monitor


class Alert(Event, frozen=True, tag="monitor.alert"):
    """Raised once, cleared once."""

    alert: str
    """Stable name of the rule, e.g. `worker-lost`."""
    subject: str
    """What it is about: a worker, a node, the job."""
    state: Literal["raised", "cleared"]
    severity: Literal["info", "warning", "critical"]
    reason: str
    suggestion: str = ""
    number: int = 0
    """Counts the raisings of this alert and subject; raised and cleared of one incident share it."""


# ------------------------------------------------------------------------------------------------------- heartbeats


class WorkerPulse(Pulse, frozen=True, tag="worker"):
    """A worker's heartbeat, 4 Hz, from its bus thread."""

    worker: str
    incarnation: int
    generation: int
    step: int
    """Step in flight."""
    committed: int
    """Number of committed steps."""
    phase: Literal["starting", "compute", "reduce", "mend", "wait", "learn", "user", "evaluate", "finish"] = "starting"
    """compute: a micro-batch; reduce: in the ring; mend: linking, roll call; wait: for a world; learn: receiving state;
    user: the script's own code between steps; evaluate: in `ring.evaluate`; finish: after the last step."""
    in_phase: float = 0.0
    """Seconds since the phase or the step changed last."""
    samples: int = 0
    """Samples in committed steps so far."""
    rate: float = 0.0
    """Samples a second of the whole job, over the last seconds."""
    step_seconds: float = 0.0
    compute_seconds: float = 0.0
    """Own compute time a slot, recent mean: what tells a straggler."""
    slots: int = 0
    """How many slots this worker has now."""
    loss: float | None = None
    loss_finite: bool = True
    epoch: int = 0
    steps_in_all: int = 0
    rss: int = 0
    current: bool = False
    """False while learning."""


class NodePulse(Pulse, frozen=True, tag="node"):
    """An agent's heartbeat, 4 Hz."""

    node: str
    workers: dict[str, str] = {}
    """Worker -> kernel process state letter."""
    load: float = 0.0
    memory_free: int = 0
    silent: tuple[str, ...] = ()
    """Nodes that this one watches and that do not answer it."""
    sick: bool = False
    """Most of those that it watches do not answer: the fault is its own, it says nothing of others."""
    view: int = 0
    """Digest of who is alive in its view."""
    rtt: dict[str, float] = {}
    """Node -> round trip to it in milliseconds, for those that it watches."""
    refused: int = 0
    """Gossip datagrams of the job's nodes in the last seconds that were sealed with a key which is not known here."""
    refused_of: int = 0
    """Nodes that they came from."""
    opened_of: int = 0
    """Nodes whose datagrams opened."""


JobEvent = (
    JobSubmitted
    | HostsListed
    | JobScaled
    | DrainAsked
    | JobStopAsked
    | JobInexact
    | JobDoubted
    | ChaosAsked
    | JobFinished
)
NodeEvent = AgentJoined | AgentLeft | NodeHeld
WorkerEvent = (
    WorkerStarted
    | WorkerRegistered
    | WorkerDying
    | WorkerExited
    | WorkerFailed
    | WorkerLeaving
    | WorkerCaughtUp
    | WorkerFinished
    | WorkerStuck
    | WorkerDiverged
    | WorkerUnreachable
)
RingEvent = RingBroken | RingLinked | RingRecovered
WorldEvent = WorldChanged | TargetsSet | WorkerRefused
ShardsEvent = ShardsPlanned | StepsCommitted | StepNotFinite | EpochFinished
CheckpointEvent = (
    CheckpointRequested
    | CheckpointWritten
    | CheckpointHeld
    | CheckpointCommitted
    | CheckpointFailed
    | CheckpointRestored
    | CheckpointDeleted
)
EvaluationEvent = EvaluationPart | EvaluationFinished | EvaluationDiffers
MonitorEvent = Alert

AnyEvent = (
    JobEvent
    | NodeEvent
    | WorkerEvent
    | RingEvent
    | WorldEvent
    | ShardsEvent
    | CheckpointEvent
    | EvaluationEvent
    | MonitorEvent
)
AnyPulse = WorkerPulse | NodePulse

AREAS: dict[str, object] = {
    "job": JobEvent,
    "node": NodeEvent,
    "worker": WorkerEvent,
    "ring": RingEvent,
    "world": WorldEvent,
    "shards": ShardsEvent,
    "checkpoint": CheckpointEvent,
    "evaluation": EvaluationEvent,
    "monitor": MonitorEvent,
    "heartbeat": AnyPulse,
}
"""Area (third token of a subject) -> the closed union that may appear there."""


def kind_of(event: Event) -> str:
    """Return `<area>.<what>` of an event, which is also the tail of its subject."""
    tag = event.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
