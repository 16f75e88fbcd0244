"""Reasons in plain words, for the world's `reason` and for whoever reads the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reknit.core.events import Evidence, Member
from reknit.core.headcount import headcount

from .damping import Kept
from .verdict import Verdict
from .view import Record, Worker

_LISTED = 4
_BRIEFLY = {
    "exit": "their agents reaped them or their scripts raised",
    "dying": "their processes end",
    "refused": "nobody listens at their addresses any more",
    "leave": "their agents left",
    "join": "their agents were started anew, or others have taken their places",
    "disconnect": "silent, and seen to be gone on another channel",
    "heartbeat": "silent, and seen to be gone on another channel",
    "progress": "others wait for them",
}


def names(items: Sequence[str]) -> str:
    """Join names: `a`, `a and b`, `a, b and c`; long lists are cut."""
    if len(items) > _LISTED:
        items = [*items[: _LISTED - 1], f"{len(items) - _LISTED + 1} more"]
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else "nobody"


def count(number: int, noun: str) -> str:
    """Say a number of things: `1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def why_dead(evidence: Sequence[Evidence]) -> str:
    """Say what is known about a dead member, each kind once."""
    said: list[str] = []
    ring = [e for e in evidence if e.source == "ring"]
    for item in evidence:
        if item.source != "ring" and item.detail not in said:
            said.append(item.detail)
    if len(ring) == 1:
        said.append(ring[0].detail)
    elif ring:
        said.append("its ring neighbours lost it")
    return ", ".join(said)


def why_gone(record: Record, verdict: Verdict) -> list[str]:
    """One clause for those of the world who died, one for those who left or finished."""
    clauses = _why_died(record, verdict)
    finished: list[str] = []
    left: list[str] = []
    for member in record.members:
        if member.worker in verdict.done:
            ending = record.ending(member)
            (finished if ending is not None and ending.complete else left).append(member.worker)
    if left:
        clauses.append(f"{names(left)} left as asked")
    if finished:
        clauses.append(f"{names(finished)} finished")
    return clauses


def _why_died(record: Record, verdict: Verdict) -> list[str]:
    """Each death with what is known about it; many at once are told together, by the evidence that settled it."""
    dead = [m.worker for m in record.members if m.worker in verdict.dead]
    if len(dead) < _LISTED:
        few: dict[tuple[str, str], list[str]] = {}
        for worker in dead:
            why = why_dead(verdict.dead[worker])
            # what is said of a node is said once of all its workers
            few.setdefault((why, "" if why.startswith("the agent of ") else worker), []).append(worker)
        return [f"{names(workers)} died: {why}" for (why, _), workers in few.items()]
    groups: dict[str, list[str]] = {}
    for worker in dead:
        evidence = verdict.dead[worker]
        settled = next((e for e in evidence if e.certain), evidence[0])
        groups.setdefault(settled.source, []).append(worker)
    return [f"{names(workers)} died: {_BRIEFLY.get(source, source)}" for source, workers in groups.items()]


def why_joined(joiners: Sequence[Worker], members: Sequence[Member]) -> list[str]:
    """Say who came, who came back with state, and who is a spare."""
    spares = {m.worker for m in members if m.role == "spare"}
    clauses = []
    back = [w for w in joiners if w.has_state_of >= 0]
    new = [w for w in joiners if w.has_state_of < 0]
    active = [w.worker for w in new if w.worker not in spares]
    spare = [w.worker for w in new if w.worker in spares]
    if active:
        clauses.append(f"{names(active)} joined")
    if spare:
        clauses.append(f"{names(spare)} joined as {'a spare' if len(spare) == 1 else 'spares'}")
    clauses += [f"{w.worker} came back with the state of step {w.has_state_of}" for w in back]
    return clauses


def who_learns(candidates: Sequence[Worker]) -> list[str]:
    """Say who has registered and stays outside for now."""
    one = len(candidates) == 1
    return [f"{names([w.worker for w in candidates])} still {'learns' if one else 'learn'}"] if candidates else []


def who_is_kept_out(shut: Mapping[str, Kept]) -> list[str]:
    """Say which nodes' new workers have to wait, and why."""
    return [f"{node} is kept out ({why.reason})" for node, why in sorted(shut.items())]


def who_carries_on(heirs: Sequence[Worker]) -> list[str]:
    """Say who has the state although nobody of the ring before is left."""
    has = "has" if len(heirs) == 1 else "have"
    return [f"{names([w.worker for w in heirs])} {has} the state, caught up in time"] if heirs else []


def why_promoted(before: Sequence[Member], members: Sequence[Member]) -> list[str]:
    """Say which spares became active."""
    spares = {m.worker for m in before if m.role == "spare"}
    promoted = [m.worker for m in members if m.role == "active" and m.worker in spares]
    return (
        [f"{names(promoted)} takes over from the spares"]
        if len(promoted) == 1
        else ([f"{names(promoted)} take over from the spares"] if promoted else [])
    )


def why_relinked(record: Record) -> str:
    """Say which link broke and who reported it."""
    told = next((b for b in record.breaks if b.error.startswith("diverged")), None)
    if told is not None:
        return f"{told.worker} broke the ring because bits differ ({told.error}), all live"
    first = record.breaks[0]
    error = f": {first.error}" if first.error else ""
    return f"the link {first.worker}–{first.peer} broke ({first.worker} lost its {first.side}{error}), all live"


def why_apart(out: Sequence[str]) -> str:
    """Say who is put out because the ring is split."""
    one = len(out) == 1
    return (
        f"no order of the ring avoids the links that cannot be made: {names(out)} {'is' if one else 'are'} put out "
        f"until {'it reaches' if one else 'they reach'} the others again"
    )


def outlook(members: Sequence[Member], status: str, *, slots: int, goes_on: bool) -> str:
    """Say how it goes on."""
    one, crew = len(members) == 1, headcount(members, slots)
    if status == "paused":
        return "too few to go on" if members else "nobody is left"  # who is awaited stands beside it
    does = ("goes on" if one else "go on") if goes_on else ("begins" if one else "begin")
    return f"{crew} {does}"
