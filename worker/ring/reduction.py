"""One step's reduction over the links of a generation, as one worker sees it.

Seen from the first active (place 0) the ring has the last active at place L. Pieces are partly summed on the way 0..L,
become final at L, and travel on from L round to the worker before it. A place beyond L (spare, learner) passes final
pieces on. Frames of one link keep their order, so pieces arrive in order and anything else is a broken peer.

The control piece is the last one: it can tell what only computed slots know, and nothing is committed before everybody
has seen it. A sole active (L = 0) needs nothing from the others, so it would run away from them: there the control
piece goes all the way round, and its return shows that everybody has the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import xxhash

from reknit.core.errors import WireError
from reknit.core.events import Range

from . import control, pieces
from .control import Settled, SlotNote, Wishes
from .frames import Header, Kind
from .link import Link, LinkBroken
from .pieces import Buffer, Piece

C = TypeVar("C", Wishes, Settled)


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """Where this worker stands in the reduction of one step.

    Attributes:
        place: distance from the first active along the ring.
        last: place of the last active.
        size: workers in the ring.
        before: slots covered when a partly summed piece reaches this worker.
        own: slots this worker adds.
    """

    place: int
    last: int
    size: int
    before: int
    own: int

    @property
    def passes_final(self) -> bool:
        """True if the next worker still needs the final piece."""
        return self.size > 1 and (self.place + 1) % self.size != self.last


def route(ring: Sequence[str], owners: Sequence[Range], me: str) -> Route:
    """Find this worker's place.

    Args:
        ring: members in ring order.
        owners: non-empty ranges in slot order; their order along the ring is the same.
        me: this worker.
    """
    start = ring.index(owners[0].worker)
    rotated = [*ring[start:], *ring[:start]]
    places = {worker: place for place, worker in enumerate(rotated)}
    mine = places[me]
    before = max((r.end for r in owners if places[r.worker] < mine), default=0)
    own = sum(r.end - r.first for r in owners if r.worker == me)
    return Route(place=mine, last=places[owners[-1].worker], size=len(ring), before=before, own=own)


@dataclasses.dataclass(slots=True)
class Reduction:
    """Reduces one step.

    Attributes:
        step, slots, cut: the step, V, the pieces of the flat buffer.
        where: this worker's route.
        previous, following: links, None in a world of one.
        result: buffer for partial sums and then the result.
        chain: result chain of the step before.
        own: blocks until this worker's own slots are computed and returns their buffers in slot order (unused slots of
            an uneven tail left out); raises when the world moves.
        wishes: this worker's wishes, asked for when its turn comes: its own slots are computed then.
        settle: the last active's decision from all wishes.
        samples: sample ids of a slot, asked for only if its gradient is not finite.
        witness: blocks until a worker that computes nothing has looked at its weights; their digest, 0: it cannot tell.
            Asked for only where a sole active's weights would be compared with nobody's.
        doubt: the fold, as far as it went here, may hold NaN or Inf.
    """

    step: int
    slots: int
    cut: Sequence[Piece]
    where: Route
    previous: Link | None
    following: Link | None
    result: Buffer
    chain: int
    own: Callable[[], Sequence[Buffer]]
    wishes: Callable[[], Wishes]
    settle: Callable[[Wishes], Settled]
    samples: Callable[[int], tuple[int, ...]] = lambda _slot: ()
    witness: Callable[[], int] = lambda: 0
    doubt: bool = False
    _made_in_place: bool = dataclasses.field(default=False, init=False)

    @np.errstate(invalid="ignore", over="ignore")  # NaN and Inf travel as any other value, and are told by name
    def run(self) -> tuple[Settled, int]:
        """Reduce.

        Returns:
            What was settled, and the new result chain.

        Raises:
            LinkBroken: a neighbour is gone or broke the protocol.
        """
        return self._go_round(xxhash.xxh3_64(self.chain.to_bytes(8, "little")), 0)

    def conclude(self, digest: xxhash.xxh3_64) -> tuple[Settled, int]:
        """Send nothing but the control piece round: the result is there already, it came another way.

        Args:
            digest: of the chain before and the result.

        Returns:
            As `run`; as `run`, it raises.
        """
        return self._go_round(digest, len(self.cut))

    def _go_round(self, digest: xxhash.xxh3_64, first: int) -> tuple[Settled, int]:
        where = self.where
        if where.place == 0:
            self._begin(digest, first)
            if where.last == 0:
                return self._settle_alone(digest.intdigest()), digest.intdigest()
        settled: Settled | None = None
        own: Sequence[Buffer] | None = None
        expect = {Kind.REDUCE: first, Kind.FINAL: first}
        done = Kind.REDUCE if where.place == where.last else Kind.FINAL
        previous = self.previous
        assert previous is not None
        while expect[done] <= len(self.cut):
            header = previous.receive_header()
            self._check(header, expect)
            control_piece = header.piece == len(self.cut)
            if header.kind is Kind.REDUCE:
                if own is None:
                    own = self.own()
                if control_piece:
                    settled = self._pass_wishes(previous.receive_payload(header), digest.intdigest()) or settled
                else:
                    self._add(header.piece, own, digest)
            elif control_piece:
                settled = self._take_settled(previous.receive_payload(header), digest.intdigest())
            else:
                self._take_final(header.piece, digest)
            expect[header.kind] += 1
        assert settled is not None
        return settled, digest.intdigest()

    def _begin(self, digest: xxhash.xxh3_64, at: int) -> None:
        """First active: fold the own slots and send them off."""
        own = self.own()
        final = self.where.last == 0
        kind = Kind.FINAL if final else Kind.REDUCE
        covered = self.slots if final else self.where.own
        for number, piece in enumerate(self.cut[at:], at):
            first, out = own[0][piece.start : piece.end], self.result[piece.start : piece.end]
            if len(own) == 1 and not final:
                out = first  # sent from where it is
            elif not final:
                out = self._reserved(out)
            pieces.fold(first, own[1:], piece, out)
            self.doubt = self.doubt or pieces.doubtful(out, piece)
            if final:
                digest.update(out.data)
            self._pass(kind, number, covered, out)
        if not final:
            self._send(kind, len(self.cut), covered, control.encode(self._tell()))

    def _settle_alone(self, after: int) -> Settled:
        """Alone among actives: what we settle goes all the way round."""
        settled = dataclasses.replace(self.settle(self._tell()), after=after)
        self._send(Kind.FINAL, len(self.cut), self.slots, control.encode(settled))
        if self.previous is not None:
            header = self.previous.receive_header()
            self._check(header, {Kind.FINAL: len(self.cut)})
            self.previous.receive_payload(header)
        return settled

    def _pass_wishes(self, payload: bytes, after: int) -> Settled | None:
        heard = _decoded(payload, Wishes)
        mine = self._tell()
        self._compare(heard, mine.weights, mine.state)
        merged = control.merge(heard, mine)
        if self.where.place != self.where.last:
            self._send(Kind.REDUCE, len(self.cut), self.where.before + self.where.own, control.encode(merged))
            return None
        settled = dataclasses.replace(self.settle(merged), after=after)
        self._send(Kind.FINAL, len(self.cut), self.slots, control.encode(settled))
        return settled

    def _tell(self) -> Wishes:
        """The wishes; if the fold may not be finite, which of our own slots are to blame is looked up first."""
        wishes = self.wishes()
        if not self.doubt:
            return wishes
        notes = {note.slot: note for note in wishes.notes}
        for slot, buffer in enumerate(self.own(), self.where.before):
            if not pieces.finite(buffer, self.cut):
                note = notes.get(slot) or SlotNote(slot)
                notes[slot] = dataclasses.replace(note, nonfinite=self.samples(slot))
        return dataclasses.replace(wishes, notes=tuple(notes[slot] for slot in sorted(notes)))

    def _take_settled(self, payload: bytes, after: int) -> Settled:
        settled = _decoded(payload, Settled)
        self._compare(settled, self.witness() if self.where.last == 0 else 0)
        if settled.after != after:
            raise LinkBroken(
                "previous",
                f"diverged: the result of step {self.step} arrived here with chain {after:016x}, "
                f"the last active has {settled.after:016x}",
            )
        if self.where.passes_final or self.where.last == 0:
            self._send(Kind.FINAL, len(self.cut), self.slots, payload)
        return settled

    def _compare(self, told: Wishes | Settled, weights: int, state: int = 0) -> None:
        """Stop before a difference spreads: the roll call that follows finds out who is wrong."""
        if told.chain != self.chain:
            raise LinkBroken(
                "previous",
                f"diverged: before step {self.step} the chain is {told.chain:016x} there and {self.chain:016x} here",
            )
        if told.weights and weights and told.weights != weights:
            raise LinkBroken(
                "previous",
                f"diverged: step {self.step} was computed with weights {told.weights:016x} there, {weights:016x} here",
            )
        if told.state and state and told.state != state:
            raise LinkBroken(
                "previous",
                f"diverged: in step {self.step} the optimizer's state is {told.state:016x} there, {state:016x} here",
            )

    def _add(self, number: int, own: Sequence[Buffer], digest: xxhash.xxh3_64) -> None:
        assert self.previous is not None
        piece = self.cut[number]
        last = self.where.place == self.where.last
        mine = self.result[piece.start : piece.end]
        start = self.previous.payload(mine)
        out = mine if last else self._reserved(mine)
        pieces.fold(start, own, piece, out)
        self.previous.release()
        self.doubt = self.doubt or pieces.doubtful(out, piece)
        if last:
            digest.update(out.data)
            self._pass(Kind.FINAL, number, self.slots, out)
        else:
            self._pass(Kind.REDUCE, number, self.where.before + self.where.own, out)

    def _take_final(self, number: int, digest: xxhash.xxh3_64) -> None:
        view = self._receive(self.cut[number])
        if self.where.passes_final:
            self._pass(Kind.FINAL, number, self.slots, view)
        digest.update(view.data)

    def _receive(self, piece: Piece) -> Buffer:
        assert self.previous is not None
        view = self.result[piece.start : piece.end]
        self.previous.receive_into(view.data)
        return view

    def _reserved(self, otherwise: Buffer) -> Buffer:
        """Where a partial sum is best made: where the next worker reads it, if it can be; `_pass` comes next."""
        place = self.following.reserve(otherwise.nbytes) if self.following is not None else None
        self._made_in_place = place is not None
        return otherwise if place is None else place

    def _pass(self, kind: Kind, piece: int, coverage: int, values: Buffer) -> None:
        if self.following is None:
            return
        if self._made_in_place:
            self._made_in_place = False
            self.following.send_reserved(kind, self.step, piece, coverage, values.nbytes)
        else:
            self.following.send(kind, self.step, piece, coverage, values.data)

    def _send(self, kind: Kind, piece: int, coverage: int, payload: bytes) -> None:
        if self.following is not None:
            self.following.send(kind, self.step, piece, coverage, payload)

    def _check(self, header: Header, expect: dict[Kind, int]) -> None:
        want = expect.get(header.kind)
        covered = self.slots if header.kind is Kind.FINAL else self.where.before
        size = None if want is None or header.piece >= len(self.cut) else _size(self.cut[header.piece])
        if (
            want is None
            or header.step != self.step
            or header.piece != want
            or header.coverage != covered
            or (size is not None and header.length != size)
        ):
            raise LinkBroken(
                "previous",
                f"protocol: {header} while step {self.step}, piece {want}, coverage {covered}, {size} bytes were due",
            )


def _size(piece: Piece) -> int:
    return piece.end - piece.start


def _decoded(payload: bytes, kind: type[C]) -> C:
    try:
        value = control.decode(payload)
    except WireError as error:
        raise LinkBroken("previous", str(error)) from error
    if not isinstance(value, kind):
        raise LinkBroken("previous", f"control piece holds {type(value).__name__}, not {kind.__name__}")
    return value
