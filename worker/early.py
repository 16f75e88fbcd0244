"""The slot whose first pieces may be reduced while the rest of it is still being computed.

    main thread:    begin(step, slot, buffer)   advance(pieces) …   [spoil(why)]   exchange.put(…)   end()
    engine thread:  anew(generation)   ready(piece) | wait(piece) | poll on fileno()   …   (`reduction.Arrivals`)

Only the last of a worker's slots can be such a one: pieces are given of all its slots or of none. What was given out
may still turn out to be wrong, as long as one piece is held back: then the main thread says so (`spoil`), the links are
broken on purpose, and the step is reduced again. Everything is guarded by the exchange's condition.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .ring.link import LinkBroken
from .ring.linking import WorldMoved
from .ring.pieces import Buffer

if TYPE_CHECKING:
    from .exchange import Exchange


class Early:
    """See the module.

    Attributes:
        on_spoilt: breaks the links of this generation and of older ones.
        spoilt: why the reduction that is going on cannot be right; empty if it can.
    """

    def __init__(self, shared: Exchange) -> None:
        self.on_spoilt: Callable[[int], None] = lambda _generation: None
        self.spoilt = ""
        self._shared = shared
        self._step = self._slot = -1
        self._buffer: Buffer | None = None
        self._pieces = 0
        self._generation = 0
        self._given = False
        self._bell: io.FileIO | None = None
        self._rung = False

    # ------------------------------------------------------------------------------------------ main thread

    def begin(self, step: int, slot: int, buffer: Buffer) -> bool:
        """A slot is being computed into this buffer, piece by piece.

        Returns:
            False if nothing can come of it: it is not the last of our slots, or not ours any more.
        """
        shared = self._shared
        with shared.cv:
            own = shared.own_slots()
            if step != shared.step or slot not in own or any(s not in shared.computed for s in own if s != slot):
                return False
            if self._bell is None:
                self._bell = io.FileIO(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), "r+b")
            self._step, self._slot, self._buffer, self._pieces = step, slot, buffer, 0
            self._ring()
            return True

    def advance(self, pieces: int) -> None:
        """The first so many pieces of the slot hold what they are expected to hold in the end."""
        with self._shared.cv:
            self._pieces = pieces
            self._ring()

    def spoil(self, why: str) -> bool:
        """Pieces are not what they should be: nothing more is given, and what was given leads to nothing.

        Returns:
            True if any was given: then the ring is broken now, and the buffer must not be used again.
        """
        with self._shared.cv:
            self._slot = -1
            given, generation = self._given, self._generation
            if given:
                self.spoilt = why
            self._ring()
        if given:
            self.on_spoilt(generation)
        return given

    def end(self) -> None:
        """The slot has been handed in, or is not computed any more."""
        with self._shared.cv:
            self._slot = -1
            self._buffer = None
            self._ring()

    def close(self) -> None:
        """Free the descriptor."""
        with self._shared.cv:
            if self._bell is not None:
                self._bell.close()

    def _ring(self) -> None:
        self._shared.cv.notify_all()
        if self._bell is not None and not self._bell.closed and not self._rung:
            os.eventfd_write(self._bell.fileno(), 1)
            self._rung = True

    # ---------------------------------------------------------------------------------------- engine thread

    def anew(self, generation: int) -> None:
        """A reduction begins: nothing has been given for it yet."""
        with self._shared.cv:
            self.spoilt = ""
            self._given = False
            self._generation = generation

    @property
    def partial(self) -> bool:
        """True while some pieces may be used and others not yet."""
        with self._shared.cv:
            return self._slot >= 0 and self._step == self._shared.step

    def ready(self, piece: int) -> Sequence[Buffer] | None:
        """Return our slots' buffers, in slot order, if this piece of all of them may be used; else None.

        Raises:
            WorldMoved: a newer world arrived.
            LinkBroken: what was given before was wrong.
        """
        with self._shared.cv:
            if self._rung and self._bell is not None:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell.fileno())
                self._rung = False
            return self._ready(piece)

    def wait(self, piece: int) -> None:
        """Block until the piece is ready or `partial` has changed; raises as `ready` does."""
        with self._shared.cv:
            before = self.partial
            while self._ready(piece) is None and self.partial == before:
                self._shared.cv.wait()

    def fileno(self) -> int:
        """Readable when more may be ready than at the last call of `ready`; only once `partial` was true."""
        assert self._bell is not None
        return self._bell.fileno()

    def _ready(self, piece: int) -> Sequence[Buffer] | None:
        shared = self._shared
        if shared.moved():
            raise WorldMoved("a newer world arrived while slots were being computed")
        if self.spoilt:
            raise LinkBroken("next", self.spoilt)
        slots = shared.own_slots()
        if slots and (shared.main_step != shared.step or shared.learning):
            return None
        early = self._slot if self._step == shared.step and piece < self._pieces else -1
        if any(slot not in shared.computed and slot != early for slot in slots):
            return None
        found = []
        for slot in slots:
            buffer = shared.computed.get(slot)
            if buffer is None:
                assert self._buffer is not None
                buffer = self._buffer
                self._given = True
            found.append(buffer)
        return found
