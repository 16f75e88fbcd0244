"""One step's reduction over the links of a generation, as one worker sees it.

Seen from the first active (place 0) the ring has the last active at place L. Pieces are partly summed on the way 0..L,
become final at L, and travel on from L round to the worker before it. A place beyond L (spare, learner) passes final
pieces on. Frames of one link keep their order, so pieces arrive in order and anything else is a broken peer.

The control piece is the last one: it can tell what only computed slots know, and nothing is committed before everybody
has seen it. A sole active (L = 0) needs nothing from the others, so it would run away from them: there the control
piece goes all the way round, and its return shows that everybody has the result.

A worker whose last slot is still being computed may already reduce the first pieces of it (`Arrivals`). While it waits
for the next piece of its own, it takes in what comes: partial sums that it cannot add to yet, and finished pieces.
"""

from __future__ import annotations

import dataclasses
import select
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

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
WINDOW = 8
"""Pieces waiting to be sent from which on the first active rather takes in what comes back than folds more of them."""


class Arrivals(Protocol):
    """This worker's own slots, as they become computed piece by piece; the piece after the last means all of them."""

    @property
    def partial(self) -> bool:
        """True while some pieces may be used and others not yet."""

    def ready(self, piece: int) -> Sequence[Buffer] | None:
        """Return the buffers of the own slots, in slot order, if this piece of all of them may be used, else None.

        Raises:
            ReknitError: the world has moved, or pieces given before were wrong.
        """

    def wait(self, piece: int) -> None:
        """Block until the piece is ready or `partial` has changed; raises as `ready` does."""

    def fileno(self) -> int:
        """A descriptor that can be read once more may be ready than at the last call of `ready`."""


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
        arrivals: the own slots piece by piece; None: `own` is all there is to ask.
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
    arrivals: Arrivals | None = None
    doubt: bool = False
    _made_in_place: bool = dataclasses.field(default=False, init=False)
    _sent: xxhash.xxh3_64 = dataclasses.field(default_factory=xxhash.xxh3_64, init=False)
    _got: xxhash.xxh3_64 = dataclasses.field(default_factory=xxhash.xxh3_64, init=False)
    _heard: dict[Kind, int] = dataclasses.field(default_factory=dict, init=False)
    _folded: int = dataclasses.field(default=0, init=False)
    _told: bytes = dataclasses.field(default=b"", init=False)
    _whole: Sequence[Buffer] | None = dataclasses.field(default=None, init=False)
    _settled: Settled | None = dataclasses.field(default=None, init=False)

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
        """Fold what is there, hear what comes, until all is done; `first`: the first piece that goes round."""
        end = len(self.cut)
        self._folded = first
        # the first active begins the sums and the last one ends them: what they never hear is not in here, and refused
        self._heard = {Kind.REDUCE: first} if self.where.place > 0 else {}
        if self.where.place != self.where.last:
            self._heard[Kind.FINAL] = first
        while not self._done(end):
            own = self._next_own(end)
            if own is None:
                self._hear(digest)
            elif self._folded < end:
                self._add(None, own, digest)
            else:
                self._conclude(digest.intdigest())
        assert self._settled is not None
        return self._settled, digest.intdigest()

    def _done(self, end: int) -> bool:
        adds_last = self.where.place == self.where.last
        return (self._folded if adds_last else self._heard[Kind.FINAL]) > end

    def _next_own(self, end: int) -> Sequence[Buffer] | None:
        """Own slots for the piece that is folded next; None if it is time to hear something first."""
        where, heard = self.where, self._heard
        summed = heard.get(Kind.REDUCE, end + 1)
        while self._folded < summed:
            results = where.place != where.last and heard[Kind.FINAL] < self._folded
            if results and where.place == 0 and self._crowded():
                return None
            own = self._own(self._folded, blocking=not results and summed > end)
            if own is not None or self._link_speaks():
                return own
        return None

    def _own(self, piece: int, *, blocking: bool) -> Sequence[Buffer] | None:
        """Own slots of which this piece may be used; None, only if not blocking, while pieces of them arrive."""
        arrivals = self.arrivals
        if arrivals is None and self._whole is None:
            self._whole = self.own()
        while self._whole is None:
            assert arrivals is not None
            self._whole = arrivals.ready(len(self.cut))
            if self._whole is None and arrivals.partial:
                own = arrivals.ready(piece)
                if own is not None or not blocking:
                    return own
            if self._whole is None:
                arrivals.wait(piece)
        return self._whole

    def _crowded(self) -> bool:
        """True if the next worker is behind and something has come back."""
        assert self.previous is not None
        assert self.following is not None
        return self.following.issued - self.following.done >= WINDOW and bool(_readable(0, self.previous))

    def _link_speaks(self) -> bool:
        """Wait for the link or for own pieces; True if it is the link."""
        assert self.previous is not None
        assert self.arrivals is not None
        return self.previous.fileno() in _readable(None, self.previous, self.arrivals)

    def _hear(self, digest: xxhash.xxh3_64) -> None:
        """Take in the next frame; a partial sum that our slots can be added to at once is not put aside."""
        assert self.previous is not None
        header = self.previous.receive_header()
        self._check(header)
        self._heard[header.kind] += 1
        control_piece = header.piece == len(self.cut)
        if header.kind is Kind.FINAL:
            if control_piece:
                self._settled = self._take_settled(self.previous.receive_payload(header), digest.intdigest())
            else:
                self._take_final(header.piece, digest)
        elif control_piece:
            self._told = self.previous.receive_payload(header)
        else:
            own = self._own(header.piece, blocking=False) if header.piece == self._folded else None
            if own is None:
                self._receive(self.cut[header.piece])
            else:
                self._add(self.previous, own, digest)

    def _add(self, link: Link | None, own: Sequence[Buffer], digest: xxhash.xxh3_64) -> None:
        """Add own slots to the next piece and pass it on; `link`: its partial sum is just being received there."""
        number, where = self._folded, self.where
        piece = self.cut[number]
        mine = self.result[piece.start : piece.end]
        final = where.place == where.last
        out = mine if final or (where.place == 0 and len(own) == 1) else self._reserved(mine)
        if where.place == 0:
            start, own = own[0][piece.start : piece.end], own[1:]
            if not own and not final:
                out = start  # sent from where it is
        else:
            start = mine if link is None else link.payload(mine)
            self._got.update(start.data)
        pieces.fold(start, own, piece, out)
        if link is not None:
            link.release()
        self.doubt = self.doubt or pieces.doubtful(out, piece)
        (digest if final else self._sent).update(out.data)
        self._pass(Kind.FINAL if final else Kind.REDUCE, number, self.slots if final else where.before + where.own, out)
        self._folded += 1

    def _conclude(self, after: int) -> None:
        """All own pieces are added: add our wishes; the last active settles them all."""
        where, number = self.where, len(self.cut)
        wishes = self._tell()
        if where.place > 0:
            heard = _decoded(self._told, Wishes)
            self._compare(heard, wishes.weights, wishes.state)
            if heard.sent != self._got.intdigest():
                reason = f"diverged: partial sums of step {self.step} arrived other than they were sent"
                raise LinkBroken("previous", reason)
            wishes = control.merge(heard, wishes)
        if where.place != where.last:
            wishes = dataclasses.replace(wishes, sent=self._sent.intdigest())
            self._send(Kind.REDUCE, number, where.before + where.own, control.encode(wishes))
        else:
            self._settled = dataclasses.replace(self.settle(wishes), after=after)
            self._send(Kind.FINAL, number, self.slots, control.encode(self._settled))
        if where.last == 0 and self.previous is not None:  # alone: it goes all the way round
            self._heard[Kind.FINAL] = number
            header = self.previous.receive_header()
            self._check(header)
            self.previous.receive_payload(header)
        self._folded += 1

    def _tell(self) -> Wishes:
        """The wishes; if the fold may not be finite, which of our own slots are to blame is looked up first."""
        wishes = self.wishes()
        if not self.doubt:
            return wishes
        notes = {note.slot: note for note in wishes.notes}
        for slot, buffer in enumerate(self._whole or (), self.where.before):
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

    def _check(self, header: Header) -> None:
        want = self._heard.get(header.kind)
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


def _readable(milliseconds: int | None, *sources: Link | Arrivals) -> list[int]:
    poll = select.poll()
    for source in sources:
        poll.register(source.fileno(), select.POLLIN)
    return [fd for fd, _ in poll.poll(milliseconds)]


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
