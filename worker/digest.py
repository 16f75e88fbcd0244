"""A digest of the weights that a step is computed with, taken every step; equal bits have equal digests.

    weights = WeightsDigest(tracked.parameters(), committed)
    watch = Watch(weights)
    watch.begin(step, witnesses)        # before the first slot of a step; large states: on a thread, beside forward
    digest = weights.take()             # after the last slot
    before = watch.changed(step, digest)  # not 0: our own weights changed under us, and no script did it

What is digested: every parameter of the tracked modules, and their buffers as they were before the step (forward has
changed the live ones). Tensors are read where they lie, in a fixed order, without a copy and without the GIL; on a GPU
they are copied to the host first.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

import torch
import xxhash

from reknit.core.layout import Layout

from .skeleton import dtype_named
from .state import capture
from .tracked import Tracked

Named = tuple[str, torch.Tensor]

MAJORITY = 3
"""So many members that have the state tell who is wrong by their number: then nobody need watch itself."""
SHARE = 0.005
"""Part of a step's time that watching oneself may take; where a digest takes longer, not every step is watched."""
BESIDE = 32 << 20
"""Bytes of weights from which on the first digest of a step runs on a thread; below, the hand-over costs more."""


class WeightsDigest:
    """Digests parameters and buffers.

    Args:
        parameters: (name, parameter), in a fixed order; those of the layout.
        names: names of the buffers, in the order in which `buffers` returns them.
        buffers: the buffers' values before the step.

    Attributes:
        nbytes: bytes that are read each time.
    """

    def __init__(
        self,
        parameters: Sequence[Named],
        names: Sequence[str] = (),
        buffers: Callable[[], Sequence[torch.Tensor]] = tuple,
    ) -> None:
        self.parameters = [parameter for _, parameter in parameters]
        self._names = [*(name for name, _ in parameters), *names]
        self._buffers = buffers
        self._known: list[tuple[int, memoryview]] = [(0, memoryview(b""))] * len(self.parameters)
        self.nbytes = sum(t.numel() * t.element_size() for t in (*self.parameters, *buffers()))

    def take(self) -> int:
        """Return the digest of the present values, never 0. Main thread, or while nothing changes them."""
        hasher = xxhash.xxh3_64()
        for number, parameter in enumerate(self.parameters):
            at, raw = self._known[number]
            if at != parameter.data_ptr() or not at:
                raw = self._look(number, parameter)
            hasher.update(raw)
        for buffer in self._buffers():
            hasher.update(_raw(buffer))
        return hasher.intdigest() or 1

    def of(self, layout: Layout, memory: memoryview) -> int:
        """Return the digest of a copied state: what `take` would return where these bits are loaded.

        Raises:
            KeyError: the copy lacks one of the tensors.
        """
        entries = {entry.path: entry for entry in layout.entries}
        flat = torch.frombuffer(memory, dtype=torch.uint8) if layout.total else torch.empty(0, dtype=torch.uint8)
        hasher = xxhash.xxh3_64()
        for name, live in zip(self._names, (*self.parameters, *self._buffers()), strict=True):
            entry = entries[name]
            part = flat[entry.offset : entry.offset + entry.size].view(dtype_named(entry.dtype)).view(entry.shape)
            order = _order(live)
            hasher.update(_raw(part if order is None else part.permute(order).contiguous()))
        return hasher.intdigest() or 1

    def _look(self, number: int, parameter: torch.Tensor) -> memoryview:
        flat = _flat(parameter)
        raw = flat.numpy().data
        if flat.numel() and flat.data_ptr() == parameter.data_ptr():  # no copy: true for as long as it lies there
            self._known[number] = (parameter.data_ptr(), raw)
        return raw


class OptimizerDigest:
    """Digests the tensors of all tracked optimizers' states; live, and in a copy of the state."""

    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked
        self._prefixes = tuple(f"{n}." for n, o in tracked.others.items() if isinstance(o, torch.optim.Optimizer))

    def take(self) -> int:
        """Return the digest of the present values, never 0. Main thread, or while nothing changes them.

        Raises:
            StateError: something in the state cannot travel.
        """
        captured = capture(self._tracked)
        hasher = xxhash.xxh3_64()
        for entry, tensor in zip(captured.layout.entries, captured.tensors, strict=True):
            if entry.path.startswith(self._prefixes):
                hasher.update(_flat(tensor.contiguous()).numpy().data)
        return hasher.intdigest() or 1

    def of(self, layout: Layout, memory: memoryview) -> int:
        """Return the digest of a copied state: what `take` would return where these bits are loaded."""
        hasher = xxhash.xxh3_64()
        for entry in layout.entries:
            if entry.path.startswith(self._prefixes):
                hasher.update(memory[entry.offset : entry.offset + entry.size])
        return hasher.intdigest() or 1


class Watch:
    """Sees whether the weights change while a step is computed with them.

    Only an optimizer's step, or a load, may change them. A script may do it too, in forward, in place or by giving a
    parameter other memory: torch counts that, and then nothing is said. A changed bit that torch does not
    know of is a fault of the memory.
    """

    def __init__(self, weights: WeightsDigest, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._weights = weights
        self._clock = clock
        self._took = 0.0
        self._began = clock()
        self._left_out = 0
        self._seen = self._step = -1
        self._before = 0
        self._changes: list[tuple[int, int]] = []
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._taken: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._waiting = False
        self._thread: threading.Thread | None = None

    def begin(self, step: int, witnesses: int = 1) -> None:
        """Before the first slot of a step; a second call in the same step does nothing.

        Args:
            step: the step.
            witnesses: members of the ring that have the run's state, with this one.
        """
        if step == self._seen:
            return
        self._seen = step
        if not self._is_due(witnesses):
            return
        self._settle()
        self._step = step
        self._changes = self._counted()
        if self._weights.nbytes < BESIDE:
            self._before = self._take()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="weights-digest", daemon=True)
            self._thread.start()
        self._waiting = True
        self._asked.put(None)

    def changed(self, step: int, digest: int) -> int:
        """Return the digest that the weights had when the step began, if it was another and torch knows of no change.

        0 if it was the same, if a script changed them, or if that is not known.
        """
        if step != self._step:
            return 0
        self._settle()
        return self._before if digest != self._before and self._changes == self._counted() else 0

    def forget(self) -> None:
        """The weights were loaded anew: what was seen of them before does not count."""
        self._settle()
        self._seen = self._step = -1

    def _is_due(self, witnesses: int) -> bool:
        if witnesses >= MAJORITY:
            return False
        now = self._clock()
        step_seconds, self._began = now - self._began, now
        if self._left_out + 1 < self._took / max(SHARE * step_seconds, 1e-9):
            self._left_out += 1
            return False
        self._left_out = 0
        return True

    def _take(self) -> int:
        began = self._clock()
        digest = self._weights.take()
        self._took = self._clock() - began
        return digest

    def _settle(self) -> None:
        if self._waiting:
            self._before, self._waiting = self._taken.get(), False

    def _counted(self) -> list[tuple[int, int]]:
        # autograd's own count of changes in place, and whether a parameter got other memory
        return [(p._version, p.data_ptr()) for p in self._weights.parameters]  # noqa: SLF001

    def _run(self) -> None:
        while True:
            self._asked.get()
            self._taken.put(self._take())


def _raw(tensor: torch.Tensor) -> memoryview:
    return _flat(tensor).numpy().data


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, in the order in which they lie if they lie without gaps."""
    plain = tensor.detach()
    if plain.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    order = _order(plain)
    plain = plain.contiguous() if order is None else plain.permute(order)
    return plain.view(-1).view(torch.uint8)


def _order(tensor: torch.Tensor) -> list[int] | None:
    """Dimensions by falling stride if the tensor lies without gaps in another order than its shape's, else None."""
    if tensor.is_contiguous():
        return None
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], tensor.shape[d] == 1, d))
    return order if tensor.permute(order).is_contiguous() else None
