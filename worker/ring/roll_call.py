"""The roll call's decision: a pure function of everybody's entry, computed alike by every member of a new ring.

Facts it rests on (docs/architecture.md, «Results kept»): live members that are *current* hold the result of step F, the
furthest anywhere, or lack exactly that one; slots that a survivor owned in the step in flight stay with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from reknit.core import plan as plans
from reknit.core.errors import WireError
from reknit.core.events import Range

from . import control, vote
from .control import Plan
from .vote import Diverged, Wrong

__all__ = ["Decision", "Diverged", "Entry", "agreed", "decide", "entry_from_plain", "entry_to_plain", "heal"]


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What one member says of itself when it is called: its component of the ring's vector clock.

    Attributes:
        worker, incarnation: who.
        role: "active" or "spare", from the world.
        held: last step whose result it holds without a gap; -1 before the first.
        current: it has the run's state and has applied, or will apply by itself, everything up to `held`.
        waiting: a learner that still needs a donor (no transfer under way).
        result: it has the bytes of that result and could send them again.
        owners: owners of step `held + 1` as it knows them, () if unknown.
        computed: slots of that step it has computed.
        plan: newest plan heard for this generation.
        chain: result chain at `held`.
        digest: of its fresh, untrained state (0 otherwise): equal fresh states need no transfer.
        memory: last step in its memory, also of an evicted member that is not current; -1: untrained or broken off.
        restorable: step count of the newest checkpoint it can reach, -1 if none.
        leaving: it wants out.
        finished: its script has left the step loop.
        weights: digest of the weights that it has for step `held + 1`, 0 if it has not taken one.
        state: digest of its whole state after the last step of the run, 0 before.
        vouched, before: what its digests are worth (see vote.Ballot).
    """

    worker: str
    incarnation: int
    role: str
    held: int
    current: bool
    waiting: bool
    result: bool = False
    owners: tuple[Range, ...] = ()
    computed: tuple[int, ...] = ()
    plan: Plan | None = None
    chain: int = 0
    digest: int = 0
    memory: int = -1
    restorable: int = -1
    leaving: bool = False
    finished: bool = False
    weights: int = 0
    state: int = 0
    vouched: bool = True
    before: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What the ring does next.

    Attributes:
        furthest: F, the furthest result held by a current member.
        chain: result chain at F.
        step: F + 1, the step in flight.
        donor: who sends result F again, "" if nobody lacks it.
        lacking: who lacks it.
        owners: owners of `step`, contiguous in ring order.
        orphans: slots that changed hands: computed again.
        kept: slots already computed that stay.
        learners: (learner, donor of its state), for those that wait for one.
        leader: in a cold start, the member that restores or keeps its state for all, and then the roll is called again.
        current: members that have the state.
        diverged: members whose result of F, or whose weights for F + 1, are not the right ones: they learn anew.
        words: the decision in words.
        ask: members that must take a digest of their weights before anything can be decided; then the roll is called
            again, as with a leader.
        void: that weights change while a step is computed is the script's doing: it says nothing about who is wrong.
    """

    furthest: int
    chain: int
    step: int
    donor: str
    lacking: tuple[str, ...]
    owners: tuple[Range, ...]
    orphans: int
    kept: int
    learners: tuple[tuple[str, str], ...]
    leader: str
    current: frozenset[str]
    diverged: tuple[Wrong, ...]
    words: str
    ask: tuple[str, ...] = ()
    void: bool = False


def decide(entries: Sequence[Entry], slots: int, generation: int) -> Decision:
    """Decide from all entries in ring order.

    Raises:
        Diverged: members hold different results or weights of the same step, and no majority agrees.
    """
    ring = [e.worker for e in entries]
    fresh = {e.digest for e in entries if e.current and e.digest}
    entries = [dataclasses.replace(e, current=e.current or e.digest in fresh) for e in entries]
    current = [e for e in entries if e.current]
    if not current:
        return _cold(entries)
    furthest = max(e.held for e in current)
    holders = [e for e in current if e.held == furthest]
    diverged, ask, void = _diverged(holders)
    if ask:
        return _asking(furthest, ask)
    wrong = {d.worker for d in diverged}
    if wrong:
        entries = [dataclasses.replace(e, current=False, waiting=True) if e.worker in wrong else e for e in entries]
        holders = [e for e in holders if e.worker not in wrong]
    # who lacks more than the furthest result learns anew (possible after a plan that changed all owners at once), and
    # so does who lacks it while its only holders have it inside their weights (they learned, their teacher is dead)
    senders = [e.worker for e in holders if e.result]
    oldest = furthest - 1 if senders else furthest
    entries = [e if e.held >= oldest else dataclasses.replace(e, current=False, waiting=True) for e in entries]
    current = [e for e in entries if e.current]
    lacking = tuple(e.worker for e in current if e.held == furthest - 1)
    known = next((e.owners for e in holders if e.owners), ())
    eligible = [e.worker for e in current if e.role == "active" and not e.leaving]
    if not known:  # nobody has begun this step as an owner: everybody who may compute takes part, learners included
        starters = [e.worker for e in entries if e.role == "active" and not e.leaving] or eligible or ring
        owners, orphans = _fresh(entries, slots, generation, starters), 0
    else:
        owners, orphans = heal(known, ring, [e.worker for e in current], slots, spares=_spares(current, known))
    owned = {r.worker: r for r in owners}
    kept = sum(
        1 for e in holders if e.worker in owned for s in e.computed if owned[e.worker].first <= s < owned[e.worker].end
    )
    learners = tuple((e.worker, _nearest(ring, e.worker, holders)) for e in entries if not e.current and e.waiting)
    words = f"step {furthest + 1} goes on with {len(owners)} of {len(ring)} workers computing"
    words += "".join(f"; {d.words(furthest if d.what == 'result' else furthest + 1)} and learns anew" for d in diverged)
    if lacking:
        words += f"; {senders[0]} sends the result of step {furthest} again to {', '.join(lacking)}"
    if orphans:
        words += f"; {orphans} orphaned slots are computed again, {kept} computed ones kept"
    if learners:
        words += "; " + ", ".join(f"{a} learns from {b}" for a, b in learners)
    return Decision(
        furthest=furthest,
        chain=holders[0].chain,
        step=furthest + 1,
        donor=senders[0] if lacking else "",
        lacking=lacking,
        owners=owners,
        orphans=orphans,
        kept=kept,
        learners=learners,
        leader="",
        current=frozenset(e.worker for e in current),
        diverged=diverged,
        words=words,
        void=void,
    )


def _diverged(holders: Sequence[Entry]) -> tuple[tuple[Wrong, ...], tuple[str, ...], bool]:
    """Holders of the furthest result that have other bits than the right ones; whom to ask first; if doubts are void.

    Results come first: who has another one has other weights for that reason alone.
    """
    furthest = holders[0].held
    results = vote.weigh("result", f"of step {furthest}", [vote.Ballot(e.worker, e.chain, e.vouched) for e in holders])
    wrong = {w.worker for w in results.wrong}
    rest = [e for e in holders if e.worker not in wrong]
    ballots = [vote.Ballot(e.worker, e.weights, e.vouched, e.before) for e in rest]
    weights = vote.weigh("weights", f"in step {furthest + 1}", ballots)
    if weights.ask:
        return (), weights.ask, False
    found = (*results.wrong, *weights.wrong)
    wrong = {w.worker for w in found}
    states = [vote.Ballot(e.worker, e.state, e.vouched) for e in rest if e.worker not in wrong and e.state]
    # after the last step there is nothing to mend it with if no majority tells who is right: the weights are
    weigh = vote.minority if all(e.finished for e in holders) else _weigh
    return (*found, *weigh("state", f"in step {furthest + 1}", states)), (), weights.void


def _weigh(what: vote.What, where: str, ballots: Sequence[vote.Ballot]) -> tuple[Wrong, ...]:
    return vote.weigh(what, where, ballots).wrong


def agreed(ends: Sequence[tuple[int, int]]) -> bool:
    """True if a run may end with what its workers have: (digest of the weights, of the whole state), one each.

    Where only states differ and no majority says which is right, there is nothing to mend it with: the weights are.
    """
    if len({weights for weights, _ in ends}) > 1:
        return False
    states = [vote.Ballot(str(number), state) for number, (_, state) in enumerate(ends) if state]
    return not vote.minority("state", "", states)


def _asking(furthest: int, ask: tuple[str, ...]) -> Decision:
    return Decision(
        furthest=furthest,
        chain=0,
        step=furthest + 1,
        donor="",
        lacking=(),
        owners=(),
        orphans=0,
        kept=0,
        learners=(),
        leader="",
        current=frozenset(),
        diverged=(),
        words=f"the weights for step {furthest + 1} differ: {', '.join(ask)} must say which it has",
        ask=ask,
    )


def heal(
    known: Sequence[Range], ring: Sequence[str], current: Sequence[str], slots: int, spares: Sequence[str] = ()
) -> tuple[tuple[Range, ...], int]:
    """Give the slots of dead owners to their ring neighbours; survivors keep theirs.

    A spare that stands between two surviving owners takes the gap there; else the left half goes to the owner before it
    and the right half to the one after. If survivors no longer stand in slot order (the ring was re-ordered), the whole
    step is split anew.

    Args:
        known: owners of the step before the break, in slot order.
        ring: live members in ring order.
        current: live members that have the state.
        slots: V.
        spares: current members that hold no slots and may take some.

    Returns:
        The new owners, and how many slots changed hands.
    """
    place = {w: i for i, w in enumerate(ring)}
    alive = [r for r in known if r.worker in place and r.worker in current and r.end > r.first]
    if not alive:
        able = [w for w in ring if w in current]
        return plans.split(slots, able), slots
    if [place[r.worker] for r in alive] != sorted(place[r.worker] for r in alive):
        fresh = plans.split(slots, [w for w in ring if w in {r.worker for r in alive}])
        before = {s: r.worker for r in alive for s in range(r.first, r.end)}
        moved = sum(before.get(s) != r.worker for r in fresh for s in range(r.first, r.end))
        return tuple(r for r in fresh if r.end > r.first), moved
    spans = {r.worker: [r.first, r.end] for r in alive}
    order: list[str] = [r.worker for r in alive]
    orphans = slots - sum(r.end - r.first for r in alive)
    for index in range(len(alive) + 1):
        left = alive[index - 1] if index > 0 else None
        right = alive[index] if index < len(alive) else None
        low, high = (left.end if left else 0), (right.first if right else slots)
        if low >= high:
            continue
        between = [
            s
            for s in spares
            if (left is None or place[s] > place[left.worker]) and (right is None or place[s] < place[right.worker])
        ]
        if between:
            for r in plans.split(high - low, between):
                spans[r.worker] = [low + r.first, low + r.end]
            at = order.index(right.worker) if right else len(order)
            order[at:at] = between
        elif left is None:
            assert right is not None
            spans[right.worker][0] = low
        elif right is None:
            spans[left.worker][1] = high
        else:
            middle = low + (high - low + 1) // 2
            spans[left.worker][1] = middle
            spans[right.worker][0] = middle
    owners = tuple(Range(worker=w, first=spans[w][0], end=spans[w][1]) for w in order if spans[w][1] > spans[w][0])
    return owners, orphans


def _cold(entries: Sequence[Entry]) -> Decision:
    ring = [e.worker for e in entries]
    leader = max(entries, key=lambda e: (max(e.memory + 1, e.restorable), e.memory, -ring.index(e.worker)))
    if leader.memory >= 0 and leader.memory + 1 >= leader.restorable:
        found = f"still holds step {leader.memory}"
    elif leader.restorable >= 0:
        found = f"restores the checkpoint of {leader.restorable} steps"
    else:
        found = "begins afresh"
    return Decision(
        furthest=-1,
        chain=0,
        step=0,
        donor="",
        lacking=(),
        owners=(),
        orphans=0,
        kept=0,
        learners=(),
        leader=leader.worker,
        current=frozenset(),
        diverged=(),
        words=f"nobody has the state of the run: {leader.worker} {found}, the others learn from it",
    )


def _fresh(entries: Sequence[Entry], slots: int, generation: int, starters: Sequence[str]) -> tuple[Range, ...]:
    ring = [e.worker for e in entries]
    heard = [e.plan for e in entries if e.plan is not None and control.fits(e.plan, slots, generation, ring, starters)]
    newest = max(heard, key=lambda p: p.version, default=None)
    ranges = newest.ranges if newest is not None else plans.split(slots, starters)
    return tuple(r for r in ranges if r.end > r.first)


def _spares(current: Sequence[Entry], known: Sequence[Range]) -> list[str]:
    owning = {r.worker for r in known}
    return [e.worker for e in current if e.worker not in owning and e.role == "active" and not e.leaving]


def _nearest(ring: Sequence[str], learner: str, holders: Sequence[Entry]) -> str:
    # learners spread over the holders by their place, so that several at once do not choke one donor
    index = ring.index(learner)
    return holders[index % len(holders)].worker


# ------------------------------------------------------------------------------------------------------------- bytes


def entry_to_plain(entry: Entry) -> list[Any]:
    """An entry as plain values for the token."""
    plain: list[Any] = [getattr(entry, f.name) for f in dataclasses.fields(entry)]
    names = [f.name for f in dataclasses.fields(entry)]
    plain[names.index("owners")] = control.ranges_to_plain(entry.owners)
    plain[names.index("plan")] = control.plan_to_plain(entry.plan)
    plain[names.index("computed")] = list(entry.computed)
    return plain


def entry_from_plain(plain: Any) -> Entry:
    """An entry from plain values.

    Raises:
        WireError: they do not fit.
    """
    try:
        values = dict(zip([f.name for f in dataclasses.fields(Entry)], plain, strict=True))
        values["owners"] = control.ranges_from_plain(values["owners"])
        values["plan"] = control.plan_from_plain(values["plan"])
        values["computed"] = tuple(values["computed"])
        return Entry(**values)
    except (TypeError, ValueError) as error:
        raise WireError(f"roll-call entry does not fit: {error}") from error
