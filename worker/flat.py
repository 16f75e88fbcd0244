"""Gradients, buffers and loss of a slot to and from the flat buffer that the ring reduces.

Sections: `f4` values (gradients of fp32, bf16, fp16 and complex64 parameters, float buffers) and then counts (slots in
which a parameter had a gradient, slots in which a buffer changed); `f8` values (fp64 likewise) and then
[samples that took part, loss x samples, samples]; `raw` all other buffers, slot 0's. See docs/architecture.md, «Flat
layout».
"""

# ruff: noqa: SLF001 - buffers are looked up where torch keeps them, and foreach operations have no public name

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch

from reknit.core.errors import UsageError

from .ring.pieces import Buffer, Section, Shape
from .tracked import Tracked

_F4 = (torch.float32, torch.bfloat16, torch.float16)
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclasses.dataclass(slots=True)
class _Views:
    """Typed views into one flat buffer."""

    buffer: Buffer
    f4: torch.Tensor
    f8: torch.Tensor
    parameters: list[torch.Tensor]
    buffers: list[torch.Tensor]
    counts: torch.Tensor
    taken: torch.Tensor
    loss: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What a reduced step says besides its gradient: global mean loss (None if the script gave none) and samples."""

    loss: float | None
    samples: float


class Flat:
    """Reads and writes flat buffers for the tracked modules.

    The set of parameters is fixed when this is made: those that are trained then.

    Args:
        tracked: the tracked objects.
        cached: how many buffers' views are kept: more than are in use at a time.

    Attributes:
        parameters: those that are trained, in the order of their registration.
        layout: the same in the order of the layout, which is the other way round.
        shape: sections of the flat buffer, equal on all workers with equal modules.
    """

    def __init__(self, tracked: Tracked, *, cached: int = 16) -> None:
        trained = tracked.trained()
        self._names = [name for name, _ in trained]
        self.parameters = [parameter for _, parameter in trained]
        # the last registered first: backward comes to them first, so the first pieces of a slot are complete early
        self.layout = self._parameters = self.parameters[::-1]
        self._versions: list[int] = []
        self._cached = cached
        self._buffer_places = _once(tracked)
        present = self._buffers()
        self._committed: list[torch.Tensor] = [b.clone() for b in present]
        self._places = [_place(p.dtype, p.numel()) for p in (*self._parameters, *present)]
        counts = len(self._places)
        self._f4_values = sum(n for kind, n in self._places if kind == "f4")
        self._f8_values = sum(n for kind, n in self._places if kind == "f8")
        gradients = self._places[: len(self._parameters)]
        self._f4_gradients = sum(n for kind, n in gradients if kind == "f4")
        self._f8_gradients = sum(n for kind, n in gradients if kind == "f8")
        raw = sum(-(-n // 8) * 8 for kind, n in self._places if kind == "raw")
        f4 = self._f4_values + counts
        f4 += f4 % 2
        end4, end8 = 4 * f4, 4 * f4 + 8 * (self._f8_values + 3)
        sections = [
            Section("f4", 0, end4, gradients=4 * self._f4_gradients),
            Section("f8", end4, end8, gradients=8 * self._f8_gradients),
            Section("raw", end8, end8 + raw),
        ]
        self.shape = Shape(tuple(s for s in sections if s.end > s.start))
        self._bounds = (end4, end8, end8 + raw)
        self._cache: OrderedDict[int, _Views] = OrderedDict()
        self._gpus = sorted({t.device for t in (*self._parameters, *present) if t.device.type == "cuda"}, key=str)
        self._out4 = torch.empty(self._f4_values, pin_memory=bool(self._gpus))
        self._out8 = torch.empty(self._f8_values, dtype=torch.float64, pin_memory=bool(self._gpus))
        self._grads = self._make_grads()

    @property
    def buckets(self) -> tuple[Section, ...]:
        """Parts of one order of magnitude each: parameters, float buffers, the counts, each number at the end.

        Padding is in none of them. See `transport.buckets`.
        """
        fours = [*(n for kind, n in self._places if kind == "f4"), len(self._places)]
        eights = [*(n for kind, n in self._places if kind == "f8"), 1, 1, 1]
        ends4 = itertools.accumulate(fours, lambda at, n: at + 4 * n, initial=0)
        ends8 = itertools.accumulate(eights, lambda at, n: at + 8 * n, initial=self._bounds[0])
        return (
            *(Section("f4", start, end) for start, end in itertools.pairwise(ends4)),
            *(Section("f8", start, end) for start, end in itertools.pairwise(ends8)),
        )

    def _buffers(self) -> list[torch.Tensor]:
        # looked up each time: forward may have assigned a new tensor to the name
        return [b.detach() for m, name in self._buffer_places if (b := m._buffers[name]) is not None]

    @property
    def committed(self) -> list[torch.Tensor]:
        """The buffers' values that every slot of the present step starts from, in the order of the layout."""
        return self._committed

    # ---------------------------------------------------------------------------------------------- a slot

    def begin_slot(self) -> None:
        """Before a slot's forward: no gradients, buffers as committed."""
        for parameter in self._parameters:
            parameter.grad = None
        self._versions = [parameter._version for parameter in self.parameters]
        self.restore_buffers()

    def check_unchanged(self) -> None:
        """Check that the slot's forward and backward have not changed a parameter.

        Raises:
            UsageError: they have; the next slot would not start from the weights that all agree on. Names the first.
        """
        now = [parameter._version for parameter in self.parameters]
        if now != self._versions:
            first = next(i for i, (a, b) in enumerate(zip(now, self._versions, strict=True)) if a != b)
            raise UsageError(
                f"parameters were changed inside the loop over the micro-batches: {self._names[first]}",
                hint="call optimizer.step(), and whatever else changes weights, after the loop: once a step",
            )

    def restore_buffers(self) -> None:
        """Put the committed buffers back, as every slot must start from the same."""
        for now, then in zip(self._buffers(), self._committed, strict=True):
            now.copy_(then)

    def name_of(self, number: int) -> str:
        """Name of a parameter by its number in the layout."""
        return self._names[-1 - number]

    def gradients(self, buffer: Buffer) -> list[torch.Tensor]:
        """Where the gradients go in a flat buffer, as real numbers, in the order of the layout."""
        return self._views(buffer).parameters

    def complete_with(self) -> list[int]:
        """For n = 0, 1, …: bytes at the front of a buffer that the first n gradients of the layout complete."""
        sizes = (4 * n if kind == "f4" else 0 for kind, n in self._places[: len(self._parameters)])
        return list(itertools.accumulate(sizes, initial=0))

    def collect(
        self, out: Buffer, *, weight: float, loss: float | None, samples: int, copied: Sequence[bool] = ()
    ) -> None:
        """Write what a slot has produced.

        Args:
            out: flat buffer.
            weight: samples of the slot / micro-batch: 1 but in an uneven tail.
            loss: the slot's mean loss, None if the script did not say.
            samples: samples of the slot.
            copied: for each gradient in the layout, whether it is in the buffer already; empty: none is.
        """
        views = self._views(out)
        targets, sources, empty = [], [], []
        counts = np.zeros(len(self._places), dtype=np.float32)
        for number, (parameter, view) in enumerate(zip(self._parameters, views.parameters, strict=True)):
            grad = parameter.grad
            there = bool(copied) and copied[number]
            if grad is None:
                if not there:
                    empty.append(view)
                continue
            counts[number] = 1.0
            parameter.grad = None
            if not there:
                targets.append(view)
                sources.append(real(grad.detach().to_dense() if grad.layout is not torch.strided else grad.detach()))
        if empty:
            torch._foreach_zero_(empty)
        if targets:
            torch._foreach_copy_(targets, sources, non_blocking=bool(self._gpus))
        for number, (now, then, view) in enumerate(
            zip(self._buffers(), self._committed, views.buffers, strict=True), len(self._parameters)
        ):
            counts[number] = float(not torch.equal(now, then))
            view.copy_(real(now), non_blocking=bool(self._gpus))
        self._arrive()
        if weight != 1.0:
            views.f4[: self._f4_values].mul_(weight)
            views.f8[: self._f8_values].mul_(weight)
        views.counts.copy_(torch.from_numpy(counts))
        views.taken[0] = samples if loss is not None or counts[: len(self._parameters)].any() else 0.0
        views.loss[0] = 0.0 if loss is None else loss * samples
        views.loss[1] = 0.0 if loss is None else samples

    # -------------------------------------------------------------------------------------------- a result

    def apply(self, result: Buffer, *, samples: int, micro_batch: int) -> Summary:
        """Set `.grad` to the mean over the samples that took part, and the buffers to their new values.

        A micro-batch for which the script called no `backward` has not taken part; if none has, there is no gradient.

        Args:
            result: reduced flat buffer; not changed.
            samples: samples of the step.
            micro_batch: samples of a full slot.
        """
        self._arrive()  # a GPU may still read the last step's means
        views = self._views(result)
        counts = views.counts.tolist()
        taken = float(views.taken[0]) or samples
        for values, out, gradients in (
            (views.f4, self._out4, self._f4_gradients),
            (views.f8, self._out8, self._f8_gradients),
        ):
            torch.div(values[:gradients], taken / micro_batch, out=out[:gradients])
            torch.div(values[gradients : len(out)], samples / micro_batch, out=out[gradients:])
        for number, (parameter, (source, grad)) in enumerate(zip(self._parameters, self._grads, strict=True)):
            if counts[number] == 0:
                parameter.grad = None
                continue
            if grad is not source:
                target = torch.view_as_real(grad) if grad.is_complex() else grad
                target.copy_(source, non_blocking=bool(self._gpus))
            parameter.grad = grad
        self.restore_buffers()
        self._apply_buffers(views, counts[len(self._parameters) :])
        return self.summary(result)

    def _arrive(self) -> None:
        """Wait until what was copied from and to GPUs is there; buffers are page-locked, so that it need not block."""
        for device in self._gpus:
            torch.cuda.current_stream(device).synchronize()

    def _apply_buffers(self, views: _Views, counts: list[float]) -> None:
        at4 = at8 = 0
        for kind, n in self._places[: len(self._parameters)]:
            at4 += n if kind == "f4" else 0
            at8 += n if kind == "f8" else 0
        numbers = range(len(self._parameters), len(self._places))
        for number, now, view, count in zip(numbers, self._buffers(), views.buffers, counts, strict=False):
            kind, n = self._places[number]
            if kind == "f4":
                source, at4 = self._out4[at4 : at4 + n].view(view.shape), at4 + n
            elif kind == "f8":
                source, at8 = self._out8[at8 : at8 + n].view(view.shape), at8 + n
            else:
                source = view
            if count:  # one that no slot changed keeps its bits: V equal values need not average to themselves
                real(now).copy_(source)
        self.commit_buffers()

    def commit_buffers(self) -> None:
        """Take the present buffers as committed (after an apply, or after a state was loaded)."""
        self._committed = [b.clone() for b in self._buffers()]

    def summary(self, result: Buffer) -> Summary:
        """Global mean loss and samples of a reduced step; reads 16 bytes."""
        total, samples = result[self._bounds[1] - 16 : self._bounds[1]].view(np.float64)
        return Summary(float(total / samples) if samples else None, float(samples))

    # ---------------------------------------------------------------------------------------------- views

    def _views(self, buffer: Buffer) -> _Views:
        known = self._cache.get(id(buffer))
        if known is not None and known.buffer is buffer:
            return known
        flat = torch.from_numpy(buffer)
        end4, end8, end = self._bounds
        f4, f8, raw = flat[:end4].view(torch.float32), flat[end4:end8].view(torch.float64), flat[end8:end]
        at = {"f4": 0, "f8": 0, "raw": 0}
        parts = {"f4": f4, "f8": f8, "raw": raw}
        shapes = [_real_shape(p) for p in self._parameters] + [_real_shape(b) for b in self._committed]
        made = []
        for (kind, n), shape, tensor in zip(self._places, shapes, (*self._parameters, *self._committed), strict=True):
            first = at[kind]
            part = parts[kind][first : first + n]
            at[kind] += n if kind != "raw" else -(-n // 8) * 8
            made.append((part.view(tensor.dtype) if kind == "raw" else part).view(shape))
        views = _Views(
            buffer=buffer,
            f4=f4,
            f8=f8,
            parameters=made[: len(self._parameters)],
            buffers=made[len(self._parameters) :],
            counts=f4[self._f4_values : self._f4_values + len(self._places)],
            taken=f8[-3:-2],
            loss=f8[-2:],
        )
        self._cache[id(buffer)] = views
        while len(self._cache) > self._cached:
            self._cache.popitem(last=False)
        return views

    def _make_grads(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each parameter: its part of the divided result, and what becomes `.grad` (the same tensor if it fits)."""
        at = {"f4": 0, "f8": 0}
        grads = []
        for (kind, n), parameter in zip(self._places, self._parameters, strict=False):
            out = self._out4 if kind == "f4" else self._out8
            source = out[at[kind] : at[kind] + n].view(_real_shape(parameter))
            at[kind] += n
            fits = source.dtype == parameter.dtype and parameter.device == source.device
            grads.append(
                (source, source if fits else torch.empty_like(parameter, memory_format=torch.contiguous_format))
            )
        return grads


def _once(tracked: Tracked) -> list[tuple[torch.nn.Module, str]]:
    """Where each buffer hangs, shared ones once."""
    seen: set[int] = set()
    found = []
    for place in tracked.places():
        if place.kind != "parameter" and place.tensor is not None and id(place.tensor) not in seen:
            seen.add(id(place.tensor))
            found.append((place.module, place.attribute))
    return found


def _place(dtype: torch.dtype, numel: int) -> tuple[str, int]:
    """Section and length (elements, bytes in `raw`) of a tensor."""
    if dtype in _F4:
        return "f4", numel
    if dtype == torch.float64:
        return "f8", numel
    if dtype in _REAL:
        return ("f4" if dtype == torch.complex64 else "f8"), 2 * numel
    return "raw", numel * dtype.itemsize


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's numbers as real ones: a complex tensor gets one more dimension, of 2."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _real_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)
