"""One event or pulse of each type, with a value of its own in every field: what the bytes in tests/core/corpus hold.

`python tests/support/samples.py` writes the bytes of types that have none yet. Bytes that are there are never written
again: they stand for what is stored in somebody's log.
"""

from __future__ import annotations

from pathlib import Path

from reknit.core import wire
from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    Alert,
    ChaosAsked,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
    CheckpointHeld,
    CheckpointRequested,
    CheckpointRestored,
    CheckpointWritten,
    DrainAsked,
    EpochFinished,
    EvaluationDiffers,
    EvaluationFinished,
    EvaluationPart,
    Event,
    Evidence,
    HostsListed,
    JobDoubted,
    JobFinished,
    JobInexact,
    JobScaled,
    JobStopAsked,
    JobSubmitted,
    ListedHost,
    Member,
    NodeHeld,
    NodePulse,
    Pulse,
    Range,
    RingBroken,
    RingLinked,
    RingRecovered,
    Scores,
    ShardsPlanned,
    SlotNotFinite,
    StepNotFinite,
    StepsCommitted,
    TargetsSet,
    Terms,
    WorkerCaughtUp,
    WorkerDiverged,
    WorkerDying,
    WorkerExited,
    WorkerFailed,
    WorkerFinished,
    WorkerLeaving,
    WorkerPulse,
    WorkerRefused,
    WorkerRegistered,
    WorkerStarted,
    WorkerStuck,
    WorkerUnreachable,
    WorldChanged,
)

CORPUS = Path(__file__).parents[1] / "core" / "corpus"

_TERMS = Terms(
    slots=8,
    micro_batch=32,
    samples=50_000,
    epochs=3,
    seed=2**63 - 1,
    parameters=("fc.weight float32 10x784", "fc.bias float32 10"),
    numerics={"torch": "2.13.0", "threads": "1"},
)
_RANGES = (Range(worker="n1-0", first=0, end=5), Range(worker="n2-0", first=5, end=8))
_MEMBERS = (
    Member(worker="n1-0", incarnation=4, node="n1", pid=71, address="127.0.0.1:4711", role="active"),
    Member(worker="n2-0", incarnation=1, node="n2", pid=72, address="[::1]:4712", role="spare"),
)
_EVIDENCE = (
    Evidence(about="n3-0", source="exit", observer="n3", detail="signal 9", certain=True),
    Evidence(about="n3-0", source="ring", observer="n1-0", detail="reset by peer", certain=False),
)
_BIG = 2**64 - 1  # chains are unsigned 64-bit numbers

SAMPLES: tuple[Event | Pulse, ...] = (
    JobSubmitted(
        run="r1",
        script="train.py",
        args=("--lr", "0.1"),
        slots=8,
        min_nodes=2,
        max_nodes=4,
        nproc_per_node=2,
        spares=1,
        secret_check="ab12",
        checkpoint_dir="/data/ckpt",
        checkpoint_every_steps=100,
        checkpoint_every_seconds=600.5,
        checkpoint_keep=5,
        max_restarts=7,
        stuck_after=60.25,
        last_call=1.5,
        resume=True,
    ),
    JobScaled(workers=6),
    HostsListed(
        run="r1",
        hosts=(ListedHost(host="n1", slots=4, addresses=("10.0.0.1", "fd00::1")), ListedHost(host="n2")),
        source="script:/etc/hosts.sh on n1",
    ),
    DrainAsked(target="n2", reason="kernel update"),
    JobStopAsked(reason="enough", at_once=True),
    JobInexact(run="r1", worker="n2-0", incarnation=1, node="n2", difference="numerics.threads differs"),
    JobDoubted(run="r1", step=17, worker="n2-0", reason="diverged: step 17 was computed with other weights"),
    ChaosAsked(worker="n1-0", fault="flip-bit", target="moments", at_step=12, bit=77),
    JobFinished(run="r1", outcome="failed", reason="budget spent", step=99, state_hash="ff00", root_worker="n1-0"),
    AgentJoined(node="n1", run="r1", host="10.0.0.1", pid=70, nproc=2, client_id=12),
    AgentLeft(node="n1", reason="asked"),
    NodeHeld(
        node="n1", run="r1", cause="failing", until=1.75e9, seconds=120.0, count=6, reason="3 of its workers failed"
    ),
    WorkerStarted(worker="n1-0", incarnation=4, node="n1", pid=71, attempt=3),
    WorkerRegistered(
        worker="n1-0",
        incarnation=4,
        node="n1",
        run="r1",
        pid=71,
        address="127.0.0.1:4711",
        terms=_TERMS,
        has_state_of=41,
        client_id=13,
    ),
    WorkerDiverged(
        worker="n2-0",
        incarnation=1,
        node="n2",
        generation=5,
        step=41,
        what="weights",
        digest=_BIG,
        right=_BIG - 1,
        by="own",
        observer="n1-0",
    ),
    WorkerDying(worker="n3-0", incarnation=1, node="n3", pid=73, expected=True),
    WorkerExited(
        worker="n3-0",
        incarnation=1,
        node="n3",
        pid=73,
        code=-9,
        signal="SIGKILL",
        out_of_memory=True,
        stderr_tail="Zeile 1\nläuft über …",
        seconds_alive=12.5,
        last_step=41,
        expected=True,
        log="/var/log/n3-0.log",
    ),
    WorkerFailed(
        worker="n1-0",
        incarnation=4,
        error="ValueError: bad sample",
        traceback='  File "train.py", line 3\nValueError: bad sample\n',
        step=41,
        slot=2,
        samples=(7, 49_999),
    ),
    WorkerLeaving(worker="n2-0", incarnation=1, reason="SIGTERM", idle=True),
    WorkerCaughtUp(worker="n2-0", incarnation=1, generation=3, step=42, seconds=0.75),
    WorkerFinished(worker="n2-0", incarnation=1, generation=3, step=999, state_hash="ff00"),
    WorkerStuck(worker="n2-0", incarnation=1, node="n2", state="T stopped", seconds=2.5),
    WorkerUnreachable(
        worker="n3-0", incarnation=1, address="10.0.0.3:4713", refused=True, error="refused", observer="membership"
    ),
    RingBroken(worker="n1-0", incarnation=4, generation=2, step=41, peer="n3-0", side="previous", error="ECONNRESET"),
    RingLinked(
        worker="n1-0",
        incarnation=4,
        generation=3,
        step=41,
        link_seconds=0.003,
        roll_call_seconds=0.002,
        decision="slots 3 to 4 of n3-0: n1-0 takes 3, n2-0 takes 4",
    ),
    RingRecovered(worker="n1-0", generation=3, step=41, seconds=0.0625, computed_again=2),
    WorldChanged(
        generation=3,
        run="r1",
        status="paused",
        members=_MEMBERS,
        reason="n3-0 died: its agent reaped it (signal 9); 2 workers go on",
        evidence=_EVIDENCE,
        decided_by="membership-1",
        removed=("n3-0",),
        added=("n2-0",),
        awaiting="1 more node",
        leaving=("n1-0",),
        targets={"n1": 2, "n2": 0},
        restarts=5,
    ),
    TargetsSet(run="r1", targets={"n1": 2, "n2": 0}, reason="scaled to 2 workers", decided_by="membership-1"),
    WorkerRefused(worker="n4-0", incarnation=1, reason="seed is 1 here, 0 in the job", final=False),
    ShardsPlanned(generation=3, version=2, slots=8, ranges=_RANGES, reason="n2-0 is slower"),
    StepsCommitted(
        run="r1",
        first=40,
        last=41,
        generation=3,
        ranges=_RANGES,
        slots=8,
        chains=(0, _BIG),
        loss=0.1,
        computed_again=2,
    ),
    StepNotFinite(
        run="r1",
        step=17,
        generation=3,
        slots=(SlotNotFinite(slot=2, worker="n2-0", samples=(41, 97)),),
        loss=2.5,
        steps=4,
    ),
    EpochFinished(run="r1", epoch=1, steps=196, samples=50_000),
    CheckpointRequested(
        checkpoint="c7", at_step=100, reason="every 100 steps", reassigned={"n1-0": (3, 4), "n2-0": ()}
    ),
    CheckpointWritten(
        checkpoint="c7",
        step=100,
        worker="n1-0",
        file="chunk-3",
        chunk=3,
        chunks=8,
        bytes=2**33,
        hash="0" * 32,
        generation=3,
        chain=_BIG,
        seconds=0.5,
        writers=("n1-0", "n2-0"),
    ),
    CheckpointHeld(
        checkpoint="c7", step=100, worker="n2-0", chunks=1, generation=3, chain=_BIG, writers=("n1-0", "n2-0")
    ),
    CheckpointCommitted(checkpoint="c7", step=100, path="/data/ckpt/c7", bytes=2**40, seconds=1.5, parent="c6"),
    CheckpointFailed(checkpoint="c8", reason="no space left on device", step=200, worker="n2-0"),
    CheckpointRestored(
        run="r2", checkpoint="c7", step=100, worker="n1-0", generation=4, chain=_BIG, skipped=("c8: no manifest",)
    ),
    CheckpointDeleted(checkpoint="c6", reason="only 5 are kept"),
    EvaluationPart(
        run="r1",
        evaluation="after/100/validation/0",
        step=100,
        worker="n2-0",
        generation=3,
        scores=(Scores(names=("accuracy", "loss"), numbers=(4, 7), sums=(3.0, 0.5, 4.0, 0.25), weights=(4.0,) * 4),),
    ),
    EvaluationFinished(
        run="r1",
        evaluation="after/100/validation/0",
        step=100,
        worker="n1-0",
        name="validation",
        means={"accuracy": 0.875},
        samples=8,
        seconds=0.5,
    ),
    EvaluationDiffers(
        run="r1",
        evaluation="after/100/validation/0",
        step=100,
        micro_batches=(7, 8),
        worker="n2-0",
        first="n1-0",
        detail="loss is 0.25 there, 0.5 here",
    ),
    Alert(
        alert="worker-lost",
        subject="n3-0",
        state="raised",
        severity="warning",
        reason="signal 9",
        suggestion="look at the node's memory",
        number=2,
    ),
    WorkerPulse(
        worker="n1-0",
        incarnation=4,
        generation=3,
        step=42,
        committed=42,
        phase="compute",
        in_phase=0.25,
        samples=10_752,
        rate=1234.5,
        step_seconds=0.2,
        compute_seconds=0.02,
        slots=5,
        loss=0.1,
        loss_finite=False,
        epoch=1,
        steps_in_all=588,
        rss=2**31,
        current=True,
    ),
    NodePulse(node="n1", workers={"n1-0": "S", "n1-1": "T"}, load=1.5, memory_free=2**34),
)


def name_of(sample: Event | Pulse) -> str:
    """Name of the file of a type, without its ending."""
    tag = str(sample.__struct_config__.tag)
    return tag if isinstance(sample, Event) else f"heartbeat.{tag}"


def write_missing() -> None:
    """Write the bytes of types that have none yet."""
    CORPUS.mkdir(exist_ok=True)
    for sample in SAMPLES:
        path = CORPUS / f"{name_of(sample)}.bin"
        if not path.exists():
            path.write_bytes(wire.encode(sample))
            print("wrote", path.name)


if __name__ == "__main__":
    write_missing()
