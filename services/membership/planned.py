"""What makes a world *planned*: nobody of the world before is lost, so its links hold until the new one is linked.

Workers finish the step in flight on the old links and go over at a step boundary; any other world breaks the links at
once. So the question is not why the world comes but whether each member of the one before still keeps its place in the
ring: `hindrance` names the first thing that speaks against it. `HINDRANCES` is the whole rule as a table, `docs()` is
the table as Markdown; the documentation is made from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .verdict import Verdict
from .view import Record


@dataclasses.dataclass(frozen=True, slots=True)
class Hindrance:
    """One thing that makes a world unplanned.

    Attributes:
        what: what is the case, in words.
        why: why the step in flight cannot end on the links that are there.
        holds: (record, verdict, status of the world to be) -> is it so?
    """

    what: str
    why: str
    holds: Callable[[Record, Verdict, str], bool]


def _no_ring(record: Record, verdict: Verdict, _status: str) -> bool:
    return not record.knit or all(m.worker in verdict.gone for m in record.members)


def _was_paused(record: Record, _verdict: Verdict, _status: str) -> bool:
    return record.world is None or record.world.status != "running"


def _pauses(_record: Record, _verdict: Verdict, status: str) -> bool:
    return status != "running"


def _somebody_died(_record: Record, verdict: Verdict, _status: str) -> bool:
    return bool(verdict.dead)


def _somebody_was_ended(record: Record, verdict: Verdict, _status: str) -> bool:
    done = [m for m in record.members if m.worker in verdict.done]
    return any(not _by_its_own_word(record, m.worker, m.incarnation) for m in done)


def _by_its_own_word(record: Record, worker: str, incarnation: int) -> bool:
    ending = record.endings[worker, incarnation]
    return ending.evidence.source == "leave" and ending.evidence.observer == worker


def _a_link_broke(record: Record, _verdict: Verdict, _status: str) -> bool:
    return bool(record.breaks)


def _the_run_ends(record: Record, _verdict: Verdict, _status: str) -> bool:
    return record.completed()


HINDRANCES = (
    Hindrance("no ring is linked: the run begins, or everybody was lost", "there is no step in flight", _no_ring),
    Hindrance("the world before was paused", "nobody steps", _was_paused),
    Hindrance("the new world is paused or the last one", "nobody shall step", _pauses),
    Hindrance("a member died: any evidence that was enough", "its links are gone or lead to nobody", _somebody_died),
    Hindrance(
        "a member that was to leave ended before it had handed its slots over, or its agent left with it",
        "its links are gone",
        _somebody_was_ended,
    ),
    Hindrance("a link of the ring broke, even if all live", "the step cannot go round", _a_link_broke),
    Hindrance("a member has finished the last step", "there is no further step boundary", _the_run_ends),
)
"""In the order in which they are looked at. Whatever none of them speaks against is planned."""

PLANNED = (
    ("workers join", "they are linked in beside their own, others only get a new neighbour"),
    ("a spare is promoted (`reknit scale`)", "members stay, the order may change"),
    ("a member leaves as asked, after it has handed its slots over", "it relays until the others have gone over"),
)
"""Examples of what is planned, with the reason; tests play each of them."""


def hindrance(record: Record, verdict: Verdict, status: str) -> Hindrance | None:
    """Return what makes the next world unplanned, None if it is planned.

    Args:
        record: with the world before.
        verdict: on its members.
        status: of the world to be.
    """
    return next((h for h in HINDRANCES if h.holds(record, verdict, status)), None)


def docs() -> str:
    """Return the rule as a Markdown table."""
    rows = [("what changes or is so", "planned", "because"), ("---",) * 3]
    rows += [(what, "yes", why) for what, why in PLANNED]
    rows += [(h.what, "no", h.why) for h in HINDRANCES]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
