"""What a step agrees on besides its gradient: its last piece, merged along the ring, made final by the last active.

Each active adds its wishes (`merge`, commutative); the last one settles them (`settle`, pure), and what it settles
travels to everybody with the result. So these agreements need no service and no extra message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from reknit.core import plan as plans
from reknit.core import wire
from reknit.core.errors import WireError
from reknit.core.events import Range
from reknit.worker.means import Sums, fold


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A plan of the shards service: who computes which slots; ordered by (generation, version)."""

    generation: int
    version: int
    ranges: tuple[Range, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SlotNote:
    """What a computed slot has to say besides its gradient.

    Attributes:
        slot: number of the slot.
        metrics: name -> (sum, weight); the global mean is the sum of sums over the sum of weights, in slot order.
        nonfinite: sample ids of the slot if its gradient or loss holds NaN or Inf, else empty.
        proof: digest of its gradient, told for one slot a step while a newcomer learns; else 0.
    """

    slot: int
    metrics: Sums = dataclasses.field(default_factory=dict)
    nonfinite: tuple[int, ...] = ()
    proof: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Wishes:
    """What actives ask for, and tell, while a step is reduced.

    Attributes:
        plan: newest plan heard.
        leaving: workers that want no slots from the next step on.
        checkpoint: id of a checkpoint to take after this step, "" for none.
        ledger: last step whose ledger record is known to be stored, -1 for none.
        chain: result chain of the step before, as the first active has it; everybody compares it with its own.
        weights: digest of the parameters that the step was computed with, as the first active has it; 0: not told.
        state: digest of the optimizers' tensors likewise, in a step before which a checkpoint was taken; 0: not told.
        sent: digest of the partial sums as the worker before sent them; it is the receiver's to compare.
        notes: of computed slots, in slot order.
        switch: generation of the newest planned world heard, 0 for none.
        fed: somebody outside the ring learns from here.
        stopping: the job was asked to stop.
        unsaved: one of those that leave waits for a last checkpoint, should nobody stay.
    """

    plan: Plan | None = None
    leaving: frozenset[str] = frozenset()
    checkpoint: str = ""
    ledger: int = -1
    chain: int = 0
    weights: int = 0
    notes: tuple[SlotNote, ...] = ()
    switch: int = 0
    fed: bool = False
    stopping: bool = False
    state: int = 0
    sent: int = 0
    unsaved: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """What holds for everybody from the next step on.

    Attributes:
        owners: slots of the next step, contiguous in ring order; empty only with `stop`.
        leaving: workers whose wish to leave is granted: they have no slots any more.
        checkpoint: take this checkpoint of the state after this step.
        ledger: ledger records up to this step may be forgotten.
        stop: everybody leaves after this step.
        chain, weights, state: as in the wishes.
        rehearse: somebody learns: in the next step one slot's gradient is proved.
        proof: (slot, digest of its gradient), or empty.
        after: result chain after this step, as the last active has it: who got another result was sent it wrong.
        switch: the ring is left for that of this generation after this step; 0: it goes on.
        metrics: global means of what the slots' notes tell.
        nonfinite: (slot, sample ids) of slots whose gradient or loss was not finite.
    """

    owners: tuple[Range, ...]
    leaving: frozenset[str] = frozenset()
    checkpoint: str = ""
    ledger: int = -1
    stop: bool = False
    chain: int = 0
    weights: int = 0
    switch: int = 0
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    nonfinite: tuple[tuple[int, tuple[int, ...]], ...] = ()
    after: int = 0
    state: int = 0
    rehearse: bool = False
    proof: tuple[int, int] | tuple[()] = ()


def merge(a: Wishes, b: Wishes) -> Wishes:
    """Join two sets of wishes with equal chains and weights, of different slots; the order does not matter."""
    candidates = [p for p in (a.plan, b.plan) if p is not None]
    newest = max(candidates, key=lambda p: (p.generation, p.version), default=None)
    return Wishes(
        plan=newest,
        leaving=a.leaving | b.leaving,
        checkpoint=max(a.checkpoint, b.checkpoint),
        ledger=max(a.ledger, b.ledger),
        chain=a.chain,
        weights=a.weights,
        state=a.state,
        notes=tuple(sorted((*a.notes, *b.notes), key=lambda note: note.slot)),
        switch=min(a.switch, b.switch),  # only a world that all actives have heard of
        fed=a.fed or b.fed,
        stopping=a.stopping or b.stopping,
        unsaved=a.unsaved or b.unsaved,
    )


def settle(
    wishes: Wishes,
    owners: Sequence[Range],
    slots: int,
    *,
    generation: int,
    ring: Sequence[str],
    current: Collection[str],
) -> Settled:
    """Decide the next step's owners and what else was asked.

    A plan counts only if it is of this generation, covers all slots and names live, current members in ring order;
    else the owners stay. Leaving workers lose their slots to the others. If all leave, the run stops after this step;
    but unless the job is to stop, the last who have the state do not leave before those who learn, in the ring or
    beside it, have it too, nor, for as long as they say so, before a last checkpoint is asked for.

    Args:
        wishes: all wishes of the step.
        owners: owners of the step just reduced.
        slots: V.
        generation: generation of the ring.
        ring: members in ring order.
        current: members that had the state at the roll call. (A plan may name others: the shards service has heard that
            they caught up.)
    """
    ranges = tuple(owners)
    if wishes.plan is not None and fits(wishes.plan, slots, generation, ring, ring):
        ranges = wishes.plan.ranges
    busy = [r.worker for r in ranges if r.end > r.first]
    staying = [w for w in busy if w not in wishes.leaving]
    if not staying and not wishes.stopping:  # a run that stops needs nobody to go on
        staying = [w for w in ring if w in current and w not in wishes.leaving]
    learns = wishes.fed or any(w not in current and w not in wishes.leaving for w in ring)
    waits = wishes.unsaved and not wishes.checkpoint
    stop = not staying and (wishes.stopping or not (learns or waits))
    if stop:
        ranges = ()
    elif not staying:
        wishes = dataclasses.replace(wishes, leaving=frozenset())
    elif len(staying) < len(busy) or not set(staying) <= set(busy):
        ranges = plans.split(slots, staying)
    return Settled(
        owners=tuple(r for r in ranges if r.end > r.first),
        leaving=wishes.leaving,
        # the last checkpoint of a run that stops is that of its last step
        checkpoint=wishes.checkpoint if stop or not wishes.stopping else "",
        ledger=wishes.ledger,
        stop=stop,
        chain=wishes.chain,
        weights=wishes.weights,
        state=wishes.state,
        rehearse=wishes.fed and not stop,
        proof=next(((note.slot, note.proof) for note in wishes.notes if note.proof), ()),
        switch=wishes.switch if wishes.switch > generation and not stop else 0,
        metrics=fold(note.metrics for note in wishes.notes),
        nonfinite=tuple((note.slot, note.nonfinite) for note in wishes.notes if note.nonfinite),
    )


def fits(plan: Plan, slots: int, generation: int, ring: Sequence[str], current: Collection[str]) -> bool:
    """True if the plan may be used on this ring: its generation, all slots, current members, in ring order."""
    order = {worker: place for place, worker in enumerate(ring)}
    busy = [r.worker for r in plan.ranges if r.end > r.first]
    return (
        plan.generation == generation
        and plans.covers(plan.ranges, slots)
        and all(w in order and w in current for w in busy)
        and [order[w] for w in busy] == sorted(order[w] for w in busy)
        and len(set(busy)) == len(busy)
    )


# ------------------------------------------------------------------------------------------------------------- bytes


def ranges_to_plain(ranges: Sequence[Range]) -> list[list[Any]]:
    """Ranges as plain values."""
    return [[r.worker, r.first, r.end] for r in ranges]


def ranges_from_plain(plain: Any) -> tuple[Range, ...]:
    """Ranges from plain values."""
    return tuple(Range(worker=str(w), first=int(a), end=int(b)) for w, a, b in plain)


def plan_to_plain(plan: Plan | None) -> list[Any] | None:
    """A plan as plain values."""
    return None if plan is None else [plan.generation, plan.version, ranges_to_plain(plan.ranges)]


def plan_from_plain(plain: Any) -> Plan | None:
    """A plan from plain values."""
    return None if plain is None else Plan(int(plain[0]), int(plain[1]), ranges_from_plain(plain[2]))


def encode(control: Wishes | Settled) -> bytes:
    """Bytes of the control piece."""
    if isinstance(control, Wishes):
        return wire.pack(
            [
                "wishes",
                plan_to_plain(control.plan),
                sorted(control.leaving),
                control.checkpoint,
                control.ledger,
                control.chain,
                control.weights,
                [_note_to_plain(note) for note in control.notes],
                control.switch,
                control.fed,
                control.stopping,
                control.state,
                control.sent,
                control.unsaved,
            ]
        )
    return wire.pack(
        [
            "settled",
            ranges_to_plain(control.owners),
            sorted(control.leaving),
            control.checkpoint,
            control.ledger,
            control.stop,
            control.chain,
            control.weights,
            control.switch,
            dict(control.metrics),
            [[slot, list(samples)] for slot, samples in control.nonfinite],
            control.after,
            control.state,
            control.rehearse,
            list(control.proof),
        ]
    )


def decode(data: bytes) -> Wishes | Settled:
    """Decode a control piece.

    Raises:
        WireError: the bytes are not a control piece.
    """
    plain = wire.unpack(data)
    try:
        if plain[0] == "wishes":
            _, plan, leaving, checkpoint, ledger, chain, weights, notes, switch, fed, stopping, *digests = plain
            state, sent, unsaved = digests
            return Wishes(
                plan_from_plain(plan),
                frozenset(leaving),
                str(checkpoint),
                int(ledger),
                int(chain),
                int(weights),
                tuple(_note(*note) for note in notes),
                int(switch),
                bool(fed),
                bool(stopping),
                int(state),
                int(sent),
                bool(unsaved),
            )
        if plain[0] == "settled":
            _, owners, leaving, checkpoint, ledger, stop, chain, weights, switch, metrics, nonfinite, *ends = plain
            after, state, rehearse, proof = ends
            return Settled(
                ranges_from_plain(owners),
                frozenset(leaving),
                str(checkpoint),
                int(ledger),
                bool(stop),
                int(chain),
                int(weights),
                int(switch),
                {str(k): float(v) for k, v in metrics.items()},
                tuple((int(slot), tuple(map(int, samples))) for slot, samples in nonfinite),
                int(after),
                int(state),
                bool(rehearse),
                (int(proof[0]), int(proof[1])) if proof else (),
            )
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise WireError(f"control piece does not fit: {error}") from error
    raise WireError("not a control piece")


def _note_to_plain(note: SlotNote) -> list[Any]:
    return [note.slot, {name: list(sums) for name, sums in note.metrics.items()}, list(note.nonfinite), note.proof]


def _note(slot: Any, metrics: Any, nonfinite: Any, proof: Any) -> SlotNote:
    sums = {str(name): (float(total), float(weight)) for name, (total, weight) in metrics.items()}
    return SlotNote(int(slot), sums, tuple(map(int, nonfinite)), int(proof))
