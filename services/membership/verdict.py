"""Who is dead, who is suspect: pure, from the record and the sight at one moment.

`judge(record, sight, now)` looks at each member of the world and lists the evidence about it. The rule is in
`evidence.is_proof`. Evidence that was taken back by a sign of life is not listed, so a suspicion ends by itself.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from reknit.core.events import Evidence, Member, WorkerPulse

from .evidence import is_proof, observe
from .hearing import is_cut_off, is_late, is_silent, is_slow, node_is_gone, phi_of, spoke_since
from .reach import reach
from .view import Record, Sight, Worker, node_key

LEAST_WAIT = 1.0
"""Seconds that others wait in the ring until a silent worker on a silent node counts as the one they wait for."""
LONG_STEPS = 3.0
"""... and at least so many step times: a long step is no fault."""
_LISTED = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about the members of the world.

    Attributes:
        dead: worker -> evidence, enough of it.
        done: members that finished or left politely; no evidence is needed.
        suspect: worker -> evidence, not enough.
        slow: members whose heartbeats are late.
        between: members that are missed, on nodes that some, not enough, of their neighbours get no answer from.
        nearly: members on nodes that their neighbours get no answer from, who begin to be late here too.
    """

    dead: Mapping[str, tuple[Evidence, ...]]
    done: frozenset[str]
    suspect: Mapping[str, tuple[Evidence, ...]]
    slow: frozenset[str]
    between: frozenset[str] = frozenset()
    nearly: frozenset[str] = frozenset()

    @property
    def gone(self) -> frozenset[str]:
        """All that do not take part any more."""
        return frozenset(self.dead) | self.done

    @property
    def unstable(self) -> frozenset[str]:
        """Members with some evidence against them and late heartbeats: another tick or two will tell."""
        return (self.slow & frozenset(self.suspect)) | self.between

    @property
    def certain(self) -> bool:
        """True if each death has certain evidence: there is nothing to wait for."""
        return all(any(e.certain for e in evidence) for evidence in self.dead.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """Who waits in the ring for whom, by the heartbeats of this generation, or of one that planned worlds follow.

    Attributes:
        waiting: heartbeats of those that wait in the ring.
        computing: workers that are heard to compute.
        waited: seconds that the first of them waits by now.
        step: seconds of their longest step.
        who: who waits, in words.
    """

    waiting: tuple[WorkerPulse, ...]
    computing: frozenset[str]
    waited: float = 0.0
    step: float = 0.0
    who: str = ""


def judge(record: Record, sight: Sight, now: float) -> Verdict:
    """Return the verdict on every member of the present world."""
    dead: dict[str, tuple[Evidence, ...]] = {}
    suspect: dict[str, tuple[Evidence, ...]] = {}
    done: set[str] = set()
    slow: set[str] = set()
    between: set[str] = set()
    nearly: set[str] = set()
    queue, reached = _queue(record, sight, now), reach(record, sight, now)
    named = frozenset(worker for _, worker in sight.noticed) | sight.disconnected.keys()
    for member in record.members:
        ending = record.ending(member)
        if ending is not None and ending.how in ("finished", "left"):
            done.add(member.worker)
            continue
        if ending is None and member.worker not in named and _is_well(record, sight, member, now):
            continue  # most are, at every moment
        missed = _is_missed(sight, member, now)
        by = reached.out.get(member.node, ()) if missed else ()
        evidence = (*_unheard(record, sight, member, by, now), *_about(record, sight, member, queue, now))
        if ending is not None:
            evidence = (ending.evidence, *evidence)
        if is_proof(evidence):
            dead[member.worker] = evidence
        elif evidence:
            suspect[member.worker] = evidence
        if is_slow(sight, member.worker, now):
            slow.add(member.worker)
        if missed and member.node in reached.unstable:
            between.add(member.worker)
        if not missed and member.node in reached.out and phi_of(sight, member.worker, now) > 0.0:
            nearly.add(member.worker)
    return Verdict(dead, frozenset(done), suspect, frozenset(slow), frozenset(between), frozenset(nearly))


def _is_well(record: Record, sight: Sight, member: Member, now: float) -> bool:
    """True if it is heard without any delay and works at no step for too long; then only what was noticed counts."""
    if phi_of(sight, member.worker, now) > 0.0:
        return False
    working = sight.working.get(member.worker)
    return working is None or record.spec is None or now - working[2] <= record.spec.stuck_after


def _is_missed(sight: Sight, member: Member, now: float) -> bool:
    """True if neither the worker nor its node's agent is heard as it should be."""
    return is_late(sight, member.worker, now) and is_late(sight, node_key(member.node), now)


def _about(record: Record, sight: Sight, member: Member, queue: Queue, now: float) -> tuple[Evidence, ...]:
    worker = record.workers.get(member.worker)
    if worker is None or worker.incarnation != member.incarnation:
        return ()
    found: list[Evidence | None] = [
        _disconnect(sight, member, now),
        _unreachable(record, sight, worker, now),
        *_ring(record, sight, member),
        _frozen(record, sight, worker),
        _progress(record, sight, member, queue, now),
    ]
    return tuple(e for e in found if e is not None)


def _disconnect(sight: Sight, member: Member, now: float) -> Evidence | None:
    if member.worker not in sight.disconnected or is_cut_off(sight, now):
        return None
    return observe("disconnect", member.worker, "broker", "its connection to the broker ended")


def _unheard(record: Record, sight: Sight, member: Member, by: tuple[str, ...], now: float) -> tuple[Evidence, ...]:
    """Silence here, and what the neighbours of its node say, who bear out a shorter one."""
    worker, found = record.workers.get(member.worker), []
    if worker is None or worker.incarnation != member.incarnation:
        return ()
    if by or is_silent(sight, member.worker, now):
        silence, phi = sight.streams[member.worker].silence(now), phi_of(sight, member.worker, now)
        text = f"no heartbeat for {silence:.1f} s (phi {phi:.0f})"
        found.append(observe("heartbeat", member.worker, "membership", text))
    if by:
        text = f"{', '.join(by)} get no answer from node {member.node}"
        found.append(observe("gossip", member.worker, "gossip", text))
    return tuple(found)


def _unreachable(record: Record, sight: Sight, worker: Worker, now: float) -> Evidence | None:
    at = sight.noticed.get(("unreachable", worker.worker))
    if at is None or is_cut_off(sight, now):
        return None
    if not worker.unreachable or spoke_since(record, sight, worker.worker, at):
        return None
    detail = f"{worker.address} does not answer ({worker.unreachable})"
    return observe("unreachable", worker.worker, "membership", detail)


def _ring(record: Record, sight: Sight, member: Member) -> list[Evidence]:
    """Reports about a member that has not been heard since.

    When a link breaks its ends close their other links too, so reports run round the ring. A member that reports a
    break itself is alive, whatever is said about its links.
    """
    at = sight.noticed.get(("ring", member.worker))
    spoke = any(b.worker == member.worker for b in record.breaks)
    if at is None or spoke or spoke_since(record, sight, member.worker, at):
        return []
    reports = {b.worker: b for b in record.breaks if b.peer == member.worker}
    return [
        observe(
            "ring", member.worker, b.worker, f"{b.worker} lost its link to it" + (f" ({b.error})" if b.error else "")
        )
        for b in reports.values()
    ]


def _frozen(record: Record, sight: Sight, worker: Worker) -> Evidence | None:
    at = sight.noticed.get(("frozen", worker.worker))
    if not worker.frozen or at is None or spoke_since(record, sight, worker.worker, at):
        return None
    return observe("frozen", worker.worker, f"agent of {worker.node}", f"its process is {worker.frozen}")


def _queue(record: Record, sight: Sight, now: float) -> Queue:
    """Find who waits in the ring and who is heard to compute."""
    waiting, computing = [], set()
    for member in record.members:
        pulse = sight.pulses.get(member.worker)
        if pulse is None or pulse.incarnation != member.incarnation or pulse.generation < record.at_work:
            continue
        if is_silent(sight, member.worker, now):
            continue
        if pulse.phase == "reduce" or (pulse.phase == "finish" and record.ending(member) is None):
            waiting.append(pulse)  # after the last step they wait for all to have left the loop
        elif pulse.phase in ("compute", "user", "evaluate"):
            computing.add(member.worker)
    waited = max((p.in_phase + sight.streams[p.worker].silence(now) for p in waiting), default=0.0)
    step = max((p.step_seconds for p in waiting), default=0.0)
    return Queue(tuple(waiting), frozenset(computing), waited, step, _who(waiting))


def _progress(record: Record, sight: Sight, member: Member, queue: Queue, now: float) -> Evidence | None:
    if not queue.waiting or record.spec is None:
        return None
    working = sight.working.get(member.worker)
    limit = record.spec.stuck_after
    if working is not None and working[0] == member.incarnation and now - working[2] > limit:
        # who is between two steps, or evaluates, holds up the next step
        waiting = [p for p in queue.waiting if p.worker != member.worker]
        waits = [p.in_phase + sight.streams[p.worker].silence(now) for p in waiting if p.step >= working[1]]
        took = min(now - working[2], max(waits, default=0.0))
        if took > limit:
            detail = f"it is on step {working[1]} for {took:.0f} s (stuck after {limit:g} s) while {_who(waiting)}"
            return observe("progress", member.worker, "membership", detail, certain=True)
    gone = is_silent(sight, member.worker, now) and node_is_gone(sight, member.node, now)
    if not gone or queue.computing:
        return None  # a worker that is heard to compute may be the one they wait for
    # who is silent is not among those that wait
    if queue.waited <= max(LEAST_WAIT, LONG_STEPS * queue.step):
        return None
    return observe("progress", member.worker, "membership", f"{queue.who} for it since {queue.waited:.1f} s")


def _who(waiting: Sequence[WorkerPulse]) -> str:
    """Say who waits; the first of them if they are many, since this is said of each member that they wait for."""
    first = heapq.nsmallest(_LISTED, (p.worker for p in waiting))
    more = f" and {len(waiting) - _LISTED} more" if len(waiting) > _LISTED else ""
    return f"{', '.join(first)}{more} wait"
