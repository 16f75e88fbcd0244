"""What this process hears and sees, folded into the sight; and whether its own ears can be trusted.

Two ways of being deaf must never look like others being dead: the broker is away, or this process itself did not run
for a while. Both look the same from here: nobody at all was heard (`is_deaf`). Silence is no evidence then, and with
the first heartbeat that comes again all windows begin anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    DrainAsked,
    Event,
    JobScaled,
    JobStopAsked,
    NodePulse,
    RingBroken,
    TargetsSet,
    WorkerCaughtUp,
    WorkerDying,
    WorkerExited,
    WorkerFailed,
    WorkerLeaving,
    WorkerPulse,
    WorkerRegistered,
    WorkerStuck,
    WorkerUnreachable,
    WorldChanged,
)

from .layered import layered
from .life import put
from .phi import EVIDENCE, LATE, SLOW, Window
from .view import Life, Record, Sight, node_key

EARS = 0.75
"""Seconds without any heartbeat of anybody after which the fault is ours: three intervals."""
CUT_OFF = 60.0
"""Seconds without any heartbeat of anybody until they are taken for gone after all, if nothing else speaks for them."""
NEW_MEMBER = Window(0.0, expected=1.0)
"""A member that was never heard: its first heartbeat may take a second or two."""


def is_deaf(sight: Sight, now: float) -> bool:
    """True if nobody at all is heard: then silence says nothing about anybody."""
    return now - sight.heard > EARS


def is_cut_off(sight: Sight, now: float) -> bool:
    """True if nobody at all is heard, and not for so long yet that all of them may be gone.

    A broker that is cut off together with us says of everybody that the connection ended, and nobody answers a dial:
    two kinds of evidence that are one fault, ours.
    """
    return is_deaf(sight, now) and now - sight.heard < CUT_OFF


def hear(record: Record, sight: Sight, pulse: WorkerPulse | NodePulse, now: float) -> Sight:
    """Fold one heartbeat in: the most frequent input by far, so no mapping that grows with the job is copied."""
    # Hearing again after a silence of all: those that are still on their way back get the time to come.
    pulses, working, disconnected, noticed = sight.pulses, sight.working, sight.disconnected, sight.noticed
    streams, rtt, reports = sight.streams, sight.rtt, sight.reports
    if is_deaf(sight, now):
        streams, disconnected = _anchored(sight, now), {}
        noticed = {k: at for k, at in noticed.items() if k[0] != "unreachable"}
    key = ""
    if isinstance(pulse, NodePulse):
        key = node_key(pulse.node)
        if pulse.rtt:
            rtt = layered(rtt).put(pulse.node, pulse.rtt)
        if pulse.silent or pulse.sick:
            reports = layered(reports).put(pulse.node, (now, None if pulse.sick else pulse.silent))
        elif pulse.node in reports:
            reports = layered(reports).without(pulse.node)
    elif (known := record.workers.get(pulse.worker)) is not None and known.incarnation == pulse.incarnation:
        key = pulse.worker  # else it is not in yet, or these are the last words of an earlier life
        pulses, working = layered(pulses).put(key, pulse), _working(working, pulse, now)
    if key:
        window = streams.get(key)
        streams = layered(streams).put(key, window.heard(now) if window else Window(now, spoke=now))
    if key in disconnected:
        disconnected = {k: at for k, at in disconnected.items() if k != key}
    return dataclasses.replace(
        sight,
        heard=now,
        streams=streams,
        pulses=pulses,
        working=working,
        disconnected=disconnected,
        noticed=noticed,
        rtt=rtt,
        reports=reports,
    )


def _working(
    working: Mapping[str, tuple[int, int, float]], pulse: WorkerPulse, now: float
) -> Mapping[str, tuple[int, int, float]]:
    """Since when each worker computes the step that it is on."""
    before = working.get(pulse.worker)
    if pulse.phase not in ("compute", "user", "evaluate"):
        return layered(working).without(pulse.worker)
    if before is not None and before[:2] == (pulse.incarnation, pulse.step):
        return working
    return layered(working).put(pulse.worker, (pulse.incarnation, pulse.step, now - pulse.in_phase))


def _anchored(sight: Sight, now: float) -> dict[str, Window]:
    return {key: window.anchored(now) for key, window in sight.streams.items()}


def notice(record: Record, sight: Sight, event: Event, now: float, trace: str) -> Sight:
    """Note when something of the log was heard; `record` has the event in it already."""
    if isinstance(event, WorldChanged):
        return _new_world(record, sight, event, now)
    if isinstance(event, RingBroken) and event in record.breaks:
        since = now if sight.breaks_since is None else sight.breaks_since
        noticed = sight.noticed
        if ("ring", event.peer) not in noticed:
            noticed = put(noticed, ("ring", event.peer), now)
        sight = dataclasses.replace(sight, breaks_since=since, noticed=noticed)
    elif isinstance(event, TargetsSet):  # answered; the world that follows some day has a cause of its own
        return dataclasses.replace(sight, trace="")
    elif isinstance(event, WorkerStuck):
        sight = dataclasses.replace(sight, noticed=put(sight.noticed, ("frozen", event.worker), now))
    elif isinstance(event, WorkerUnreachable):
        sight = dataclasses.replace(sight, noticed=put(sight.noticed, ("unreachable", event.worker), now))
    elif isinstance(event, AgentJoined):  # a new agent; what was said of the one before does not count
        key = node_key(event.node)
        gone = {k: at for k, at in sight.disconnected.items() if k != key}
        sight = dataclasses.replace(sight, disconnected=gone, streams=put(sight.streams, key, NEW_MEMBER.anchored(now)))
    if trace and not sight.trace and _opens(record, event):
        return dataclasses.replace(sight, trace=trace)
    return sight


def _opens(record: Record, event: Event) -> bool:
    """True if this may be the first evidence of the next change; late news of a death that is settled are not."""
    match event:
        case RingBroken():
            return event in record.breaks
        case WorkerDying() | WorkerExited() | WorkerFailed() | WorkerLeaving() | WorkerStuck() | WorkerUnreachable():
            return (event.worker, event.incarnation) in record.lives
        case WorkerCaughtUp():
            return (event.worker, event.incarnation) not in record.lives
        case WorkerRegistered():
            return not record.teaches()
        case AgentLeft() | JobScaled() | DrainAsked() | JobStopAsked():
            return True
        case _:
            return False


def _new_world(record: Record, sight: Sight, event: WorldChanged, now: float) -> Sight:
    if record.world is not event:
        return sight
    streams = dict(sight.streams)
    for member in event.members:
        pulse = sight.pulses.get(member.worker)
        if member.worker not in streams or (pulse and pulse.incarnation != member.incarnation):
            streams[member.worker] = NEW_MEMBER.anchored(now)
    names = {m.worker for m in event.members} | {w.worker for w in record.waiting()}
    return dataclasses.replace(
        sight,
        streams={k: w for k, w in streams.items() if k.startswith("@") or k in names},
        pulses={k: p for k, p in sight.pulses.items() if k in names},
        working={k: w for k, w in sight.working.items() if k in names},
        checks={k: c for k, c in sight.checks.items() if k in names},
        noticed={k: at for k, at in sight.noticed.items() if k[0] != "ring" and k[1] in names},
        world_at=now,
        breaks_since=None,
        joins_since=None,
        ready_since=None,
        gone=frozenset(),
        trace="",
    )


def disconnected(record: Record, sight: Sight, client_id: int, name: str, now: float) -> tuple[Sight, tuple[Life, ...]]:
    """Fold a disconnect notice in; return the lives whose addresses must be dialled now.

    A connection is known by the client id that its owner registered, or, after a reconnect, by its name.
    """
    gone = dict(sight.disconnected)
    to_check: list[Life] = []
    for worker in record.workers.values():
        if worker.life in record.endings:
            continue
        node = record.nodes.get(worker.node)
        if name == worker.worker or (worker.client_id and worker.client_id == client_id):
            gone[worker.worker] = now
            to_check.append(worker.life)
        elif node is not None and (name == f"agent/{node.node}" or (node.client_id and node.client_id == client_id)):
            gone[node_key(node.node)] = now
            to_check.append(worker.life)
    return dataclasses.replace(sight, disconnected=gone), tuple(to_check)


def phi_of(sight: Sight, key: str, now: float) -> float:
    """Phi of a stream; 0 if it was never heard or nobody is."""
    window = sight.streams.get(key)
    return 0.0 if window is None or is_deaf(sight, now) else window.phi(now)


def is_silent(sight: Sight, key: str, now: float) -> bool:
    """True if the silence of this stream is evidence."""
    return phi_of(sight, key, now) >= EVIDENCE


def is_slow(sight: Sight, key: str, now: float) -> bool:
    """True if its heartbeats are late: worth a note, nothing more."""
    return phi_of(sight, key, now) >= SLOW


def told_of(sight: Sight, node: str) -> tuple[str, ...] | None:
    """Whom a node gets no answer from, as it said last; None: it is sick, and cannot tell."""
    report = sight.reports.get(node)
    return report[1] if report is not None else ()


def is_late(sight: Sight, key: str, now: float) -> bool:
    """True if its heartbeats are late enough to bear out what others say of it."""
    return phi_of(sight, key, now) >= LATE


def node_is_gone(sight: Sight, node: str, now: float, *, at_least: float = 0.0) -> bool:
    """True if the node's agent is disconnected or silent, for at least so many seconds."""
    key = node_key(node)
    since = sight.disconnected.get(key)
    if since is not None and now - since >= at_least:
        return True
    return is_silent(sight, key, now) and sight.streams[key].silence(now) >= at_least


def spoke_since(record: Record, sight: Sight, worker: str, at: float) -> bool:
    """True if this life of the worker was heard after `at`."""
    window, pulse, known = sight.streams.get(worker), sight.pulses.get(worker), record.workers.get(worker)
    return (
        window is not None
        and pulse is not None
        and known is not None
        and pulse.incarnation == known.incarnation
        and window.spoke > at
    )
