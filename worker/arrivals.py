"""Gradients on their way: copied into the slot's buffer as soon as backward has finished them, and compared at the end.

A gradient may change after backward has told of it: a second backward in the same micro-batch, clipping or unscaling in
place, a hook of the user's, `p.grad.data.mul_`, which no version counter tells. So

* nothing is copied before every parameter's gradient has come equally often in each of the last slots;
* nothing is given to the ring before the copies of `REHEARSALS` slots were equal, bit for bit, to the gradients that
  the slots ended with;
* the copies of each slot are compared in the same way before the slot's last pieces are given to the ring, so a step
  in which they differ is not committed anywhere. It is reduced again, and this worker does not overlap any more.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

import torch

from .exchange import Exchange
from .flat import Flat, real
from .overlap import Overlap
from .ring.pieces import Buffer, Piece

REHEARSALS = 3
STEADY = 3
"""Slots in a row in which each gradient must have come equally often."""


class Arrivals:
    """See the module; one a session, used by the main thread.

    Args:
        flat: the layout.
        shared: gives buffers, and takes pieces to the ring.
        overlap: decides whether to.
        say: a line for the log.

    Attributes:
        early_slots: slots of which some pieces were to be had before they were complete.
    """

    def __init__(self, flat: Flat, shared: Exchange, overlap: Overlap, say: Callable[[str], None]) -> None:
        self._flat = flat
        self._shared = shared
        self._early = shared.early
        self._overlap = overlap
        self._say = say
        self._said = ""
        self.early_slots = 0
        self._handed_in = self._completed = 0.0
        self._ends = _ends(flat.shape.pieces(), flat.complete_with())
        self._possible = all(p.device.type == "cpu" for p in flat.layout)
        self._rehearsed = 0
        self._steady = 0
        self._usual: list[int] = []
        self._fired = [0] * len(flat.layout)
        self._copied = [False] * len(flat.layout)
        self._prefix = 0
        self._given = 0
        self._views: list[torch.Tensor] = []
        self._buffer: Buffer | None = None
        self._live = False
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    @property
    def possible(self) -> bool:
        """False once it is known that this model, or this script, does not go together with overlap."""
        return self._possible

    def begin(self, step: int, slot: int, *, full: bool) -> None:
        """A slot's forward is next.

        Args:
            step: which step's.
            slot: its number.
            full: it is a full micro-batch: its gradients are not weighted.
        """
        if not self._possible or not self._overlap.listening:
            self._unlisten()
            return
        if not self._hooks:
            self._listen()
        self._fired = [0] * len(self._fired)
        if self._steady < STEADY:
            return
        rehearsed = self._rehearsed >= REHEARSALS
        if rehearsed and not (full and self._overlap.wanted(step)):
            return
        self._buffer = self._shared.pool.take()
        self._live = rehearsed and self._early.begin(step, slot, self._buffer)
        if rehearsed and not self._live:
            self._shared.pool.give(self._buffer)  # not the last slot: nothing would come of it
            self._buffer = None
            return
        self._views = self._flat.gradients(self._buffer)
        self._copied = [False] * len(self._copied)
        self._prefix = self._given = 0
        for number, times in enumerate(self._usual):
            if not times:  # no gradient, as ever
                self._views[number].zero_()
                self._copied[number] = True
        self._advance()

    def end(self) -> tuple[Buffer | None, list[bool]]:
        """The slot's backward is over.

        Returns:
            The buffer that holds some of its gradients already, and which (in the order of the layout); or None.
        """
        if not self._hooks:
            return None, []
        if self._fired == self._usual:
            self._steady += 1
        else:
            self._usual, self._steady = list(self._fired), 1
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return None, []
        live, self._live = self._live, False
        self.early_slots += bool(live and self._given)
        different = self._different()
        if different is None:
            self._rehearsed += 1
            return buffer, self._copied
        why = f"the gradient of {self._flat.name_of(different)} changes after backward has finished it"
        self._possible = False
        self._unlisten()
        self._say(f"{why}: gradients enter the ring after backward, for the rest of this run")
        if live and self._early.spoil(f"overlap: {why}; reduced again without"):
            return None, []  # the buffer may still be under way
        return buffer, []

    def handed_in(self) -> None:
        """The slot is with the exchange."""
        self._early.end()
        self._handed_in = time.monotonic()

    def completed(self, step: int, generation: int) -> None:
        """A step is complete, in the world of this number."""
        now = time.monotonic()
        if self._possible and self._handed_in > self._completed > 0:
            self._overlap.completed(step, now - self._completed, now - self._handed_in, generation)
            if self._overlap.said != self._said:
                self._said = self._overlap.said
                self._say(self._said)
        self._completed = now

    def close(self) -> None:
        """Take the hooks off the parameters, for good."""
        self._possible = False
        self._unlisten()

    # ---------------------------------------------------------------------------------------------- backward

    def _unlisten(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        self._buffer = None
        self._steady = 0

    def _listen(self) -> None:
        if not all(parameter.requires_grad for parameter in self._flat.layout):
            return  # one is frozen for a while
        ours = weakref.WeakMethod(self._arrived)  # the model may outlive us

        def hook(number: int) -> Callable[[torch.Tensor], None]:
            def arrived(parameter: torch.Tensor) -> None:
                call = ours()
                if call is not None:
                    call(number, parameter)

            return arrived

        self._hooks = [p.register_post_accumulate_grad_hook(hook(n)) for n, p in enumerate(self._flat.layout)]

    def _arrived(self, number: int, parameter: torch.Tensor) -> None:
        self._fired[number] += 1
        if self._buffer is None or self._fired[number] != self._usual[number] or self._copied[number]:
            return
        grad = parameter.grad
        if grad is None or grad.layout is not torch.strided:
            return
        self._views[number].copy_(real(grad.detach()))
        self._copied[number] = True
        if number == self._prefix:
            self._advance()

    def _advance(self) -> None:
        while self._prefix < len(self._copied) and self._copied[self._prefix]:
            self._prefix += 1
        given = self._ends[self._prefix]
        if self._live and given > self._given:
            self._given = given
            self._early.advance(given)

    # --------------------------------------------------------------------------------------------- afterwards

    def _different(self) -> int | None:
        """The first parameter whose gradient is not what was copied; bit for bit, so that NaN is equal to itself."""
        for number, (parameter, copied) in enumerate(zip(self._flat.layout, self._copied, strict=True)):
            if copied and not _same(parameter.grad, self._views[number]):
                return number
        return None


def _same(grad: torch.Tensor | None, copy: torch.Tensor) -> bool:
    if grad is None:
        return not copy.view(_BITS[copy.dtype]).any()
    if grad.layout is not torch.strided:
        return False
    value = real(grad.detach()).to(copy.dtype)
    return value.shape == copy.shape and torch.equal(value.view(_BITS[copy.dtype]), copy.view(_BITS[copy.dtype]))


_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _ends(cut: tuple[Piece, ...], ends: list[int]) -> list[int]:
    """How many pieces are complete with the first n parameters of the layout, for each n."""
    found = []
    complete = 0
    for end in ends:
        while complete < len(cut) and cut[complete].end <= end:
            complete += 1
        found.append(complete)
    return found
