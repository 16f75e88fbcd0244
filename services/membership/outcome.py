"""How a run ends: completed, stopped, or failed with its root cause.

A run fails at once when the script itself fails before anything was committed, when one step fails again and again
(poison), or when the restart budget is spent. The root named is the first failure of that burst in the log's order;
what followed from it (lost connections, ended runs) is never named instead.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from reknit.core.events import JobFinished, Member

from .damping import FROM_OUTSIDE
from .hearing import node_is_gone
from .view import Failure, Record, Sight

RETRIES = 3
"""Restarts after failures of the same kind without progress."""
NEAR = 10
"""Committed steps within which failures at one step count as the same poison."""
AT_ONCE = 5.0
"""Seconds after which a run that was stopped at once ends even if not every process was reported gone."""
_FOLLOW_UPS = frozenset(
    {
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "ControlPlaneUnreachable",
        "RingBroken",
        "RunFailed",
        "StaleGeneration",
        "StaleWorld",
    }
)


def outcome(record: Record, sight: Sight, alive: Collection[Member], now: float) -> JobFinished | None:
    """Return how the run ends, None while it goes on.

    Args:
        record: what the log says.
        sight: what this process sees.
        alive: members of the present world that still take part.
        now: own monotonic seconds.
    """
    if not record.open:
        return None
    failed = failure_of(record, alive)
    if failed is not None:
        return failed
    if record.completed() and not alive:
        return _completed(record)
    if record.stop is not None and (_overdue(record, sight, now) or (not alive and _all_ended(record, sight, now))):
        reason = record.stop.reason or "it was asked to stop"
        return _finished(record, "stopped", reason)
    if _never_joined(record):
        return _finished(record, "completed", "the script ended on every node without joining the ring")
    return None


def failure_of(record: Record, alive: Collection[Member]) -> JobFinished | None:
    """Return the failed end of a run whose failures are beyond mending, else None."""
    if not record.failures or record.completed():
        return None
    rules = [_before_the_first_step, _again_and_again, _poison, _budget]
    for rule in rules if alive else [*rules, _given_up]:
        burst, reason = rule(record)
        if burst:
            root = root_of(burst)
            log = f" (log: {root.log})" if root.log else ""
            text = f"{root.worker}: {root.text}{log}; {reason}"
            return _finished(record, "failed", text, root_worker=root.worker)
    return None


def root_of(burst: Sequence[Failure]) -> Failure:
    """Return the first failure that is not merely the echo of another."""
    own = [f for f in burst if f.text.partition(":")[0].rpartition(".")[2] not in _FOLLOW_UPS]
    return (own or burst)[0]


def _before_the_first_step(record: Record) -> tuple[Sequence[Failure], str]:
    if record.began:
        return (), ""
    burst = [f for f in record.failures if f.raised or (not f.registered and f.text.startswith("exit code"))]
    return burst, "no step was committed before, so it is not tried again"


def _again_and_again(record: Record) -> tuple[Sequence[Failure], str]:
    last = record.failures[-1]
    if record.began or last.text in FROM_OUTSIDE:
        return (), ""
    burst = [f for f in record.failures if f.worker == last.worker and f.text == last.text]
    if len(burst) <= RETRIES:
        return (), ""
    return burst, f"the same after each of {RETRIES} restarts, before the first step was committed"


def _poison(record: Record) -> tuple[Sequence[Failure], str]:
    last = record.failures[-1]
    burst = [
        f for f in record.failures if f.raised and f.step == last.step and abs(f.committed - last.committed) <= NEAR
    ]
    if not last.raised or len(burst) <= RETRIES:
        return (), ""
    # no count: others fail at it too until they hear of the end, and the summary counts them all
    return burst, f"step {last.step} fails again and again: the script or its data is to blame"


def _budget(record: Record) -> tuple[Sequence[Failure], str]:
    if record.spec is None or record.restarts <= record.spec.max_restarts:
        return (), ""
    return _latest(
        record
    ), f"restart budget spent: {record.restarts} unexpected exits, {record.spec.max_restarts} allowed"


def _latest(record: Record) -> Sequence[Failure]:
    """Failures since the last step was committed."""
    return [f for f in record.failures if f.committed == record.failures[-1].committed]


def _given_up(record: Record) -> tuple[Sequence[Failure], str]:
    """Every agent has left, and not one of them because its workers were asked to leave."""
    left = bool(record.nodes) and all(node.left and not node.lost for node in record.nodes.values())
    endings = [record.ending(started) for started in record.started.values()]
    if record.stop is not None or not left or not all(e and e.how in ("died", "evicted") for e in endings):
        return (), ""
    return _latest(record), "no node can go on"


def _completed(record: Record) -> JobFinished:
    done = [e for e in record.endings.values() if e.complete]
    hashes = sorted({e.state_hash for e in done if e.state_hash})
    step = max(e.step for e in done)
    differ = f"; their final states differ: {', '.join(hashes)}" if len(hashes) > 1 else ""
    reason = f"{len(done)} worker{'s' if len(done) > 1 else ''} finished at step {step}{differ}"
    return _finished(record, "completed", reason, state_hash=hashes[0] if hashes else "")


def _overdue(record: Record, sight: Sight, now: float) -> bool:
    """True if the run was to be stopped at once and that was a while ago."""
    at_once = record.stop is not None and record.stop.at_once
    return at_once and sight.stop_since is not None and now - sight.stop_since > AT_ONCE


def _all_ended(record: Record, sight: Sight, now: float) -> bool:
    """True if no process that was started is known to live; a node that is gone has none."""
    lives = [(w.life, w.node) for w in record.workers.values()]
    lives += [((s.worker, s.incarnation), s.node) for s in record.started.values()]
    return all(life in record.endings or node_is_gone(sight, node, now) for life, node in lives)


def _never_joined(record: Record) -> bool:
    """True if the script ended well everywhere without ever taking part: not every script has a step loop."""
    if record.spec is None or record.workers or not record.nodes:
        return False
    endings = [record.ending(started) for started in record.started.values()]
    well = [e for e in endings if e is not None and e.code == 0]
    expected = sum(node.nproc for node in record.nodes.values())
    return len(record.nodes) >= record.spec.min_nodes and len(well) == len(endings) >= max(expected, 1)


def _finished(record: Record, how: str, reason: str, *, root_worker: str = "", state_hash: str = "") -> JobFinished:
    return JobFinished(
        run=record.run,
        outcome=how,  # type: ignore[arg-type]
        reason=reason,
        step=record.committed,
        state_hash=state_hash,
        root_worker=root_worker,
    )
