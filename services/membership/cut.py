"""When to act: many failures at once become one change of the world, a lonely certain one is acted on at once.

Deaths with certain evidence wait for nothing but what will be known within milliseconds: a targeted check that is under
way (the other workers of a node that was killed), and, where several died and not simply with their node, for the next
one: processes that are killed at once end one after the other. Others wait until nothing has changed for `SETTLE` and
no other member is between life and death (Rapid's rule: cut when some are high and none is in between, Suresh et al.
2018), at most `LONGEST`. A break of links without a death waits a little longer, for the death that may be behind it.
"""

from __future__ import annotations

from reknit.core.events import Member

from .hearing import node_is_gone
from .verdict import Verdict
from .view import Record, Sight

SETTLE = 0.1
LONGEST = 3.0
UNSTABLE_WAIT = 0.5
"""Seconds that a cut waits for members that are about to be found dead too."""
CHECK_WAIT = 0.05
"""Seconds that a certain death waits for the answers to urgent dials."""
BURST, BURST_EACH = 0.03, 0.015
"""Seconds from one certain death to the next of two, after which no more are expected; and for each that is known more:
a machine that takes many processes apart gets round to the agent that would tell of the next one late."""
LONGEST_BURST = 0.15
RELINK = 0.15
"""Seconds from the first report of a broken link to a new generation of the same members; doubles with each try."""
DIVERGED = 0.01
"""The same where a worker says that it broke the link itself, since bits differ: no death is behind it."""


def gone_due(record: Record, sight: Sight, verdict: Verdict, now: float) -> bool:
    """True if the members that are gone shall be taken out of the world now."""
    gone = removable(record, verdict)
    if not gone:
        return False
    since = now - sight.gone_since
    if since >= LONGEST:
        return True
    stable = now - sight.gone_changed >= SETTLE
    if not verdict.certain:
        return stable and (since >= UNSTABLE_WAIT or not verdict.unstable)
    staying = [m for m in record.members if m.worker not in gone]
    if not verdict.dead and any(record.is_leaving(m) for m in staying):
        return stable  # they leave at the same step boundary: no new ring for each of them
    if since < CHECK_WAIT and _checks_under_way(record, sight, verdict, now):
        return False
    quiet = BURST + BURST_EACH * max(0, len(verdict.dead) - 2)
    return since >= LONGEST_BURST or now - sight.gone_changed >= quiet or not _is_burst(record, sight, verdict, now)


def removable(record: Record, verdict: Verdict) -> frozenset[str]:
    """Members whose going needs a new world.

    Once the run is complete, finishing alone does not, unless it happened in an older ring: whoever is to be linked
    with such a member would wait for one that has left the loop.
    """
    if not record.completed():
        return verdict.gone
    return frozenset(verdict.dead) | {m.worker for m in record.members if _finished_before(record, m)}


def _finished_before(record: Record, member: Member) -> bool:
    ending = record.ending(member)
    return ending is not None and ending.how == "finished" and 0 < ending.generation < record.generation


def _checks_under_way(record: Record, sight: Sight, verdict: Verdict, now: float) -> bool:
    lives = {m.worker: m.incarnation for m in record.members if m.worker not in verdict.gone}
    return any(
        check.urgent and lives.get(worker) == check.incarnation and now - check.at < CHECK_WAIT
        for worker, check in sight.checks.items()
    )


def _is_burst(record: Record, sight: Sight, verdict: Verdict, now: float) -> bool:
    """True if several died, and it is not the loss of one node with its agent, which is complete."""
    nodes = {m.node for m in record.members if m.worker in verdict.dead}
    left = {m.node for m in record.members if m.worker not in verdict.gone}
    gone = all(_has_left(record, node) or node_is_gone(sight, node, now) for node in nodes)
    return len(verdict.dead) > 1 and not (gone and len(nodes) == 1 and not nodes & left)


def _has_left(record: Record, name: str) -> bool:
    node = record.nodes.get(name)
    return node is not None and node.left


def relink_due(record: Record, sight: Sight, verdict: Verdict, now: float) -> bool:
    """True if links broke, nobody died of it, and the same members shall link anew."""
    if not record.breaks or verdict.dead or sight.breaks_since is None:
        return False
    return now - sight.breaks_since >= relink_wait(record)


def relink_wait(record: Record) -> float:
    """Seconds from the first report of a broken link to a new generation of the same members."""
    first = DIVERGED if any(b.error.startswith("diverged") for b in record.breaks) else RELINK
    wait: float = min(first * 2 ** min(record.relinks, 8), LONGEST)
    return wait
