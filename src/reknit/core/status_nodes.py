"""What is known of each node of a job: folded from the log, and as plain values, which is what `reknit nodes` shows.

Pure, as `core.status` is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from reknit.core.events import AgentJoined, AgentLeft, AnyEvent, NodeHeld, WorkerExited
from reknit.core.status import GONE, Node, Status, Worker, finite

SILENT = 3.0
"""Seconds without a heartbeat, of which four come a second, after which a node is not called up any more."""


def with_node(status: Status, event: AgentJoined | AgentLeft | NodeHeld, wall: float = 0.0, seq: int = 0) -> Status:
    """Take in that a node came, left, or is kept out.

    Args:
        status: the fold.
        event: what was said.
        wall: when, seconds since the epoch.
        seq: its place in the log, 0: not told.
    """
    known = status.nodes.get(event.node) or Node(event.node)
    match event:
        case AgentJoined():
            known = dataclasses.replace(
                known,
                host=event.host,
                labels=event.labels,
                up=True,
                left="",
                left_at=0.0,
                arrival=seq,
                pulse=None,
                heard=None,
                comings=known.comings + 1,
            )
        case AgentLeft():
            if _is_old_news(status, known, event):
                return status
            known = dataclasses.replace(known, up=False, left=event.reason, left_at=wall, pulse=None, heard=None)
        case NodeHeld():
            known = dataclasses.replace(known, held={**known.held, event.cause: event})
    return _put(status, known)


def _is_old_news(status: Status, node: Node, event: AgentLeft) -> bool:
    """True if it is the end of an agent before the one that is there now, as membership reads it too."""
    if 0 < event.joined < node.arrival:
        return True
    if not event.arrival:
        return False
    lives = any(w.node == node.node and w.state not in GONE for w in status.workers.values())
    return (lives and not event.swept) or node.arrival not in (0, event.arrival)


def seen(status: Status, event: AnyEvent, wall: float) -> Status:
    """Note when a node was last heard of; what is said about it by others does not count."""
    node = status.nodes.get(getattr(event, "node", ""))
    said_by_others = isinstance(event, NodeHeld) or (isinstance(event, AgentLeft) and event.arrival > 0)
    if node is None or said_by_others:
        return status
    return _put(status, dataclasses.replace(node, seen=max(node.seen, wall)))


def count_exit(status: Status, worker: Worker, event: WorkerExited) -> Status:
    """Count an end that nobody asked for; a script that never took part and ended well is none."""
    node = status.nodes.get(event.node)
    well = worker.state in ("finished", "leaving") or (event.code == 0 and worker.state == "starting")
    if node is None or event.expected or worker.exit is not None or well:
        return status
    return _put(status, dataclasses.replace(node, restarts=node.restarts + 1))


def _put(status: Status, node: Node) -> Status:
    return dataclasses.replace(status, nodes={**status.nodes, node.node: node})


def nodes(
    status: Status, now: float | None = None, wall: float | None = None, *, live: bool = True
) -> list[dict[str, Any]]:
    """Return one dict a node, by name.

    Keys: node, host, labels, state, up, load, workers (alive), members (in the world), restarts (unexpected exits of
    its workers), flaps (how often it came back), held_until and quarantined_until (seconds since the epoch by the
    broker's clock, 0: never), reason (why it is gone, silent or kept out), seen (when, of its newest event; heartbeats
    after it are not in the log), silent (since the newest heartbeat that the reader heard, seconds; None: it heard
    none), gone_at (seconds since the epoch, 0 while it is there; of one that did not leave its newest event).

    States: `up`; `held` and `quarantined`, up and kept out; `silent`, nothing says that it is gone, and no heartbeat
    of it is heard; `gone`.

    Args:
        status: the fold.
        now: the reader's monotonic time, for the age of heartbeats; None: built from the log alone, nobody is silent.
        wall: seconds since the epoch, to tell whether a node is kept out now; None: nobody is.
        live: somebody of the job is there; False: who is not heard is gone.
    """
    return [_node(status, node, now, wall, live) for _, node in sorted(status.nodes.items())]


def _node(status: Status, node: Node, now: float | None, wall: float | None, live: bool) -> dict[str, Any]:
    until = {cause: told.until for cause, told in node.held.items()}
    kept = [told for told in node.held.values() if wall is not None and told.until > wall]
    longest = max(kept, key=lambda told: told.until, default=None)
    workers = [w for w in status.workers.values() if w.node == node.node]
    inside = {m.worker for m in status.world.members} if status.world and status.finished is None else set()
    silent = max(now - node.heard, 0.0) if now is not None and node.heard is not None else None
    state, reason, gone_at = "up", "", 0.0
    if not node.up:
        state, reason, gone_at = "gone", node.left, node.left_at
    elif now is not None and (silent is None or silent > SILENT):
        if live:
            state = "silent"
            reason = "no heartbeat of its agent is heard: killed, stopped, or cut off"
        else:
            over = status.finished is not None
            state, gone_at = "gone", node.seen
            reason = "the run is over" if over else "nobody of the job is heard, and it did not say that it leaves"
    elif longest is not None:
        state, reason = "quarantined" if longest.cause == "failing" else "held", longest.reason
    return {
        "node": node.node,
        "host": node.host,
        "labels": dict(node.labels),
        "state": state,
        "up": node.up,
        "load": finite(node.pulse.load) if node.pulse else None,
        "workers": sum(w.state not in GONE and w.state != "refused" for w in workers) if state != "gone" else 0,
        "members": sum(w.worker in inside for w in workers),
        "restarts": node.restarts,
        "flaps": max(node.comings - 1, 0),
        "held_until": until.get("flapping", 0.0),
        "quarantined_until": until.get("failing", 0.0),
        "reason": reason,
        "seen": node.seen,
        "silent": silent,
        "gone_at": gone_at,
    }
