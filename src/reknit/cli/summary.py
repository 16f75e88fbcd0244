"""The end of a run in a few lines: how it went, and if it failed the root cause first."""

from __future__ import annotations

import dataclasses
from collections import Counter

from reknit.core.proof import Proof
from reknit.core.status import Status

from .output import Colour
from .root_cause import Failure, Failures
from .saved import unsaved

_MOST_FOLLOW_UPS = 5
_NEVER_JOINED = (
    "each worker ran the whole script by itself, and no step is in a ledger; "
    "a loop over ring.steps(…) inside of reknit.join() is what workers share"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """What is known at the end.

    Attributes:
        outcome: completed, failed, stopped, drained (this node only), or lost (nothing is known).
        seconds: that this launcher ran.
        code: exit code of this node's agent; 1 after a completed run: the script failed after its last step.
        proof: the ledger's verdict, None if it could not be read.
    """

    outcome: str
    reason: str
    seconds: float
    status: Status
    failures: Failures
    proof: Proof | None = None
    code: int = 0


def lines(ending: Ending) -> list[tuple[str, Colour]]:
    """The lines of the summary, the root cause of a failure first."""
    shown: list[tuple[str, Colour]] = []
    after = ending.outcome == "completed" and ending.code == 1
    if ending.outcome == "failed" or after:
        shown += _failure(ending)
    status = ending.status
    colour: Colour = {"completed": "green", "failed": "red"}.get(ending.outcome, "yellow")  # type: ignore[assignment]
    said = f"{ending.outcome}: {status.job}"
    if ending.reason and ending.outcome != "completed":
        said += f": {ending.reason}"
    if after:
        said, colour = f"training completed, but the script failed after it: {status.job}", "red"
    alone = ending.outcome == "completed" and status.terms is None
    if alone:
        said, colour = f"{said}: the script ended, but no step was trained in the ring", "yellow"
    shown.append((said, colour))
    if alone:
        shown.append((f"  {_NEVER_JOINED}", "yellow"))
    facts = _facts(ending)
    if facts:
        shown.append(("  " + ", ".join(facts), ""))
    if told := unsaved(status, ending.outcome):
        shown.append((f"  {told}", "yellow"))
    if status.finished is not None and status.finished.state_hash:
        shown.append((f"  state {status.finished.state_hash}", ""))
    if ending.proof is not None and ending.proof.steps:
        shown.append((f"  ledger: {ending.proof.text().splitlines()[0]}", "" if ending.proof.ok else "red"))
    return shown


def _facts(ending: Ending) -> list[str]:
    status = ending.status
    facts = []
    steps = max(status.committed, status.finished.step if status.finished else 0)
    if steps:
        facts.append(f"{steps} steps" + (f" of {status.steps}" if status.steps > steps else ""))
    facts.append(f"{ending.seconds:.1f} s")
    changes = sum(1 for world in status.worlds if world.removed or world.added) - 1
    if changes > 0:
        facts.append(f"{changes} world change" + ("" if changes == 1 else "s"))
    if status.world is not None and status.world.restarts:
        facts.append(f"{status.world.restarts} restart" + ("" if status.world.restarts == 1 else "s"))
    if status.saving.step >= 0:
        goes_on = ": --resume goes on from it" if ending.outcome == "stopped" else ""
        facts.append(f"newest checkpoint at step {status.saving.step}{goes_on}")
    return facts


def _failure(ending: Ending) -> list[tuple[str, Colour]]:
    root = ending.failures.root
    if root is None:
        return []
    shown: list[tuple[str, Colour]] = [(f"root cause: {_where(root)}: {root.what}", "red")]
    shown += [(f"  {text}", "") for text in root.traceback.rstrip().splitlines()]
    if root.log:
        shown.append((f"  log: {root.log}", ""))
    follow_ups = ending.failures.follow_ups
    same = [failure for failure in follow_ups if failure.what == root.what]
    if same:
        by_worker = Counter(failure.worker for failure in (root, *same)).most_common()
        told = ", ".join(f"{worker} ({times})" for worker, times in by_worker[:_MOST_FOLLOW_UPS])
        more = f" and {len(by_worker) - _MOST_FOLLOW_UPS} more" if len(by_worker) > _MOST_FOLLOW_UPS else ""
        shown.append((f"  {len(same) + 1} times in all: {told}{more}", ""))
    rest: dict[str, int] = {}
    for failure in (f for f in follow_ups if f.what != root.what):
        said = f"{_where(failure)}: {failure.what}"
        rest[said] = rest.get(said, 0) + 1
    for said, times in list(rest.items())[:_MOST_FOLLOW_UPS]:
        shown.append((f"  then: {said}" + (f" ({times} times)" if times > 1 else ""), "dim"))
    if len(rest) > _MOST_FOLLOW_UPS:
        shown.append((f"  and {len(rest) - _MOST_FOLLOW_UPS} more, see reknit events --job {ending.status.job}", "dim"))
    return shown


def _where(failure: Failure) -> str:
    step = f" in step {failure.step}" if failure.step >= 0 else ""
    node = f" on {failure.node}" if failure.node else ""
    return f"worker {failure.worker}{node}{step}"
