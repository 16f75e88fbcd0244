"""Whose bits are right when the members of a ring, which must all have the same, do not: pure.

    verdict = weigh("weights", "step 41", [Ballot(worker, digest, vouched, doubt), …])

Each member says which digest it has. Members are witnesses, and a witness counts only for what it knows by itself:

* who has received its state from a peer since it was last compared (`vouched` is False) repeats what that peer had:
  such members that agree with each other are one witness, and none at all beside one who was compared;
* who has found its own bits changed under it is a witness for what it had before (`before`). When most say so at once,
  and have equal bits all the same, it is the script that changes them, and that is void;
* who has not told its digest is asked before anything is decided that it could turn.

A digest is right when more than half of the witnesses have it. Otherwise nobody can tell, and that is said (`Diverged`)
rather than guessed: one silent wrong bit is worse than a crash.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Literal

from reknit.core.errors import ReknitError

What = Literal["result", "weights", "state"]
"""result: of a step, by its chain; weights: parameters and buffers; state: these and the optimizer's tensors."""


class Diverged(ReknitError):
    """Members of one ring hold different bits and nothing tells which are right: the run must not go on with them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ballot:
    """What one member says.

    Attributes:
        worker: who.
        digest: of what is compared; 0: not told yet.
        vouched: it was compared equal, or has its state from nobody, since it last received one.
        before: the digest that it had before its bits changed under it; 0: they did not, as far as it knows.
    """

    worker: str
    digest: int
    vouched: bool = True
    before: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Wrong:
    """A member whose bits are not the right ones.

    Attributes:
        worker: who.
        what: what was compared.
        digest: its digest.
        right: the digest that the others have.
        by: how that is known: the `majority` has another, or its `own` bits changed under it.
    """

    worker: str
    what: What
    digest: int
    right: int
    by: Literal["majority", "own"]

    def words(self, step: int) -> str:
        """Say what was found about the member in this step."""
        if self.by == "own":
            return f"{self.worker} found its own {_PLURAL[self.what]} changed in step {step}"
        return f"{self.worker} held {_OTHER[self.what]} in step {step} than the majority"


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it.

    Attributes:
        right: the right digest, 0 if nobody told one or some must be asked first.
        wrong: members that have another.
        ask: members that must tell theirs before it can be decided; then nothing else is said.
        void: doubts mean nothing in this run.
    """

    right: int = 0
    wrong: tuple[Wrong, ...] = ()
    ask: tuple[str, ...] = ()
    void: bool = False


def weigh(what: What, where: str, ballots: Sequence[Ballot]) -> Verdict:
    """Decide which digest is right.

    Args:
        what: what is compared.
        where: at which point, in words, for the error.
        ballots: one a member; the order does not matter but for that of the answer.

    Raises:
        Diverged: digests differ, or the only one there is was doubted, and no majority tells which is right.
    """
    told = {b.digest for b in ballots if b.digest}
    doubters = [b for b in ballots if b.before]
    if len(told) <= 1 and not doubters:
        return Verdict(right=next(iter(told), 0))
    silent = tuple(b.worker for b in ballots if not b.digest)
    if doubters and silent:
        return Verdict(ask=silent)
    void = 1 < len(doubters) > len(ballots) / 2 and len({b.digest for b in doubters}) == 1
    counts = _count(ballots, void=void)
    right, count = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    if 2 * count <= sum(counts.values()) + len(silent) or right not in told:
        if silent:
            return Verdict(ask=silent)
        said = ", ".join(
            f"{b.worker} {b.digest:016x}" + (f", before {b.before:016x}" if b.before else "")
            for b in ballots
            if b.digest
        )
        raise Diverged(
            f"the workers hold different {_PLURAL[what]} {where} and no majority says which is right ({said})"
            if len(told) > 1
            else f"the {_PLURAL[what]} {where} changed under a worker, and no majority has others of its own ({said})",
            hint="none of it was committed: the run goes back to its last checkpoint",
        )
    return Verdict(
        right=right,
        wrong=tuple(
            Wrong(b.worker, what, b.digest, right, "own" if b.before and not void else "majority")
            for b in ballots
            if b.digest not in (0, right)
        ),
        void=void,
    )


def minority(what: What, where: str, ballots: Sequence[Ballot]) -> tuple[Wrong, ...]:
    """As `weigh`, for what nobody is asked for: where no majority tells who is right, nobody is said to be wrong."""
    try:
        return weigh(what, where, ballots).wrong
    except Diverged:
        return ()


_PLURAL: dict[What, str] = {"result": "results", "weights": "weights", "state": "states"}
_OTHER: dict[What, str] = {"result": "another result", "weights": "other weights", "state": "another state"}


def _said(ballot: Ballot) -> str:
    before = f" (before {ballot.before:016x})" if ballot.before else ""
    return f"{ballot.worker} {ballot.digest:016x}{before}"


def _count(ballots: Sequence[Ballot], *, void: bool) -> dict[int, int]:
    """How many independent witnesses each digest has."""
    said = [(b.digest if void else b.before or b.digest, b.vouched) for b in ballots if b.digest]
    counts = collections.Counter(digest for digest, vouched in said if vouched)
    for digest, _ in said:  # those that repeat what a peer had
        counts[digest] = counts[digest] or 1
    return dict(counts)
