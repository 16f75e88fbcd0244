"""Tracked objects to flat bytes and back, bit for bit, without pickle.

    layout = describe(tracked)                      # main thread, between two steps
    copy_out(tracked, layout, memory)               # any thread, while no tensor changes
    load(tracked, layout, memory)                   # on another worker, or after a restart

`capture` is `describe` that also keeps the tensors, for `Snapshotter`, which copies on a thread of its own.
"""

# ruff: noqa: SLF001 - buffers are replaced where torch keeps them: Module has no public way for it

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from reknit.core import wire
from reknit.core.errors import StateError, WireError
from reknit.core.layout import Entry, Layout, aligned

from .skeleton import Encoder, check_tensor, decode, dtype_name, dtype_named, size_of
from .tracked import OUR_OWN, Place, Tracked, signature_line

Memory = memoryview | bytearray | bytes

_COPY_TOGETHER = 64 * 1024 * 1024  # bytes for each call without the GIL: a few ms, then other threads of Python go on


@dataclasses.dataclass(frozen=True, slots=True)
class Capture:
    """A layout and the live tensors behind its entries.

    Attributes:
        layout: where each tensor will lie.
        tensors: one an entry; they are the live ones, not copies.
        steady: one an entry: True if only an optimizer step changes it (parameters, optimizer state), so that it may be
            copied while forward and backward run; False for buffers and for objects of the user's own.
    """

    layout: Layout
    tensors: tuple[torch.Tensor, ...]
    steady: tuple[bool, ...]


def capture(tracked: Tracked) -> Capture:
    """Walk the tracked objects and lay out their state.

    Raises:
        StateError: something in the state cannot travel (path and type are named), or an optimizer updates tensors
            that are not tracked.
    """
    tracked.check()
    walk = _Walk()
    places, signature = [], []
    for place in tracked.places():
        walk.steady_now = place.kind == "parameter"
        known = len(walk.tensors)
        number = None if place.tensor is None else walk.take(place.tensor, place.name)
        if place.tensor is not None and number == known:
            signature.append(signature_line(place.name, place.tensor))
        places.append([place.name, place.kind, number])
    walk.steady_now = False
    objects = {name: _encode_module_values(name, module, walk) for name, module in tracked.modules.items()}
    for name, other in tracked.others.items():
        walk.steady_now = isinstance(other, torch.optim.Optimizer)
        objects[name] = walk.encoder.encode(other.state_dict(), name)
    entries, total = _lay_out(walk.tensors, walk.paths)
    layout = Layout(
        entries=entries,
        skeleton=wire.pack({"places": places, "objects": objects}),
        total=total,
        signature=tuple(signature),
    )
    return Capture(layout, tuple(walk.tensors), tuple(walk.steady))


def describe(tracked: Tracked) -> Layout:
    """Return the layout of the present state; no tensor is copied or changed.

    Raises:
        StateError: as `capture`.
    """
    return capture(tracked).layout


def copy_out(tracked: Tracked, layout: Layout, memory: Memory) -> None:
    """Copy all tensors to their places in `memory`, which has at least `layout.total` bytes.

    May run on another thread while the main thread computes, as long as nothing changes the tensors.

    Raises:
        StateError: the state is not as the layout says any more, or the memory is too small.
    """
    now = capture(tracked)
    if now.layout.entries != layout.entries:
        raise StateError("the tracked state has changed its form since it was described")
    write(now, memory)


def write(captured: Capture, memory: Memory, first: int = 0, end: int | None = None) -> None:
    """Copy captured tensors to their places in `memory`, and zeros between them.

    Args:
        captured: layout and live tensors.
        memory: at least `end - first` bytes.
        first: begin of what is copied, bytes in the flat state, a multiple of 64.
        end: its end, a multiple of 64; of the whole state by default.

    Raises:
        StateError: the memory is too small.
    """
    end = captured.layout.total if end is None else end
    flat = _flat(memory, end - first)
    if flat is None:  # no tensors, or nothing but empty ones
        return
    targets: list[torch.Tensor] = []
    sources: list[torch.Tensor] = []
    waiting = 0
    entries = captured.layout.entries
    nexts = [*(entry.offset for entry in entries[1:]), captured.layout.total]
    for entry, tensor, following in zip(entries, captured.tensors, nexts, strict=True):
        low, high, until = max(entry.offset, first), min(entry.offset + entry.size, end), min(following, end)
        if max(high, low) < until:
            flat[max(high, low) - first : until - first] = 0
        if low >= high:
            continue
        place = flat[low - first : high - first].view(dtype_named(entry.dtype))
        if high - low == entry.size:
            targets.append(place.view(entry.shape))
            sources.append(tensor)
        else:  # cut in the middle: the tensor's elements in order
            item = entry.size // max(1, tensor.numel())
            targets.append(place)
            sources.append(tensor.reshape(-1)[(low - entry.offset) // item : (high - entry.offset) // item])
        waiting += high - low
        if waiting >= _COPY_TOGETHER:
            _copy(targets, sources)
            targets, sources, waiting = [], [], 0
    _copy(targets, sources)


def load(tracked: Tracked, layout: Layout, memory: Memory) -> None:
    """Put a state into the tracked objects: the same bits as in the objects it was taken from.

    Parameters are copied in place (`.grad` is not touched), buffers too where shape and dtype fit, else they are
    replaced in their module. Other objects get fresh tensors through `load_state_dict`. Names, shapes and dtypes of all
    module tensors are checked before the first one is changed.

    Raises:
        StateError: the state does not fit the objects; names the first difference.
        WireError: the layout's skeleton is damaged.
    """
    layout.check()
    flat = _flat(memory, layout.total)
    skeleton = wire.unpack(layout.skeleton)
    try:
        saved = {name: (kind, number) for name, kind, number in skeleton["places"]}
        objects = dict(skeleton["objects"])
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"bad state skeleton ({error})") from error

    def fresh(number: int) -> torch.Tensor:
        return _read(flat, layout.entries[number])

    held, here = set(objects) - OUR_OWN, set(tracked.objects) - OUR_OWN
    if held != here:
        raise StateError(f"the state holds {sorted(held)}, tracked here are {sorted(here)}")
    values = {name: decode(objects[name], fresh) if name in objects else {} for name in tracked.objects}
    places = {place.name: place for place in tracked.places()}
    _check_places(places, saved, layout)
    with torch.no_grad():
        _load_places(tracked, places, saved, fresh)
    for name, module in tracked.modules.items():
        for path, value in values[name].items():
            module.get_submodule(path).set_extra_state(value)
    for name, other in tracked.others.items():
        _load_object(name, other, values[name])


def digest(tracked: Tracked) -> int:
    """Return a 64-bit xxh3 over all module tensors and all tensors of optimizers, in order; equal on equal workers."""
    hasher = xxhash.xxh3_64()

    def take(tensor: torch.Tensor, path: str) -> int:
        check_tensor(tensor, path)
        hasher.update(f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)};".encode())
        hasher.update(_raw(tensor).data)
        return 0

    for name, tensor in (*tracked.parameters(), *tracked.buffers()):
        take(tensor, name)
    for name, other in tracked.others.items():
        if isinstance(other, torch.optim.Optimizer):
            Encoder(take).encode(other.state_dict(), name)
    return hasher.intdigest()


class _Walk:
    """Collects the tensors of one capture; each tensor object gets one number, however often it is met."""

    def __init__(self) -> None:
        self.encoder = Encoder(self.take)
        self.tensors: list[torch.Tensor] = []
        self.paths: list[str] = []
        self.steady: list[bool] = []
        self.steady_now = False
        self._numbers: dict[int, int] = {}

    def take(self, tensor: torch.Tensor, path: str) -> int:
        number = self._numbers.get(id(tensor))
        if number is None:
            check_tensor(tensor, path)
            number = self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self.paths.append(path)
            self.steady.append(self.steady_now)
        return number


def _encode_module_values(name: str, module: torch.nn.Module, walk: _Walk) -> dict[str, Any]:
    extra = {}
    for path, part in module.named_modules():
        if type(part).get_extra_state is not torch.nn.Module.get_extra_state:
            extra[path] = part.get_extra_state()
    coded: dict[str, Any] = walk.encoder.encode(extra, f"{name} extra state")
    return coded


def _lay_out(tensors: Sequence[torch.Tensor], paths: Sequence[str]) -> tuple[tuple[Entry, ...], int]:
    entries, offset = [], 0
    for tensor, path in zip(tensors, paths, strict=True):
        dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
        size = size_of(shape, dtype)
        entries.append(Entry(path, dtype, shape, offset, size))
        offset = aligned(offset + size)
    return tuple(entries), offset


def _flat(memory: Memory, size: int) -> torch.Tensor | None:
    view = memoryview(memory).cast("B")
    if len(view) < size:
        raise StateError(f"the memory holds {len(view)} bytes, the state has {size}")
    if size == 0:
        return None  # torch.frombuffer refuses an empty buffer
    if view.readonly:
        view = memoryview(bytearray(view[:size]))
    return torch.frombuffer(view, dtype=torch.uint8, count=size)


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)


def _read(flat: torch.Tensor | None, entry: Entry) -> torch.Tensor:
    tensor = torch.empty(entry.shape, dtype=dtype_named(entry.dtype))
    if flat is not None and entry.size:
        tensor.view(-1).view(torch.uint8).copy_(flat[entry.offset : entry.offset + entry.size])
    return tensor


def _raw(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if plain.numel() == 0:
        return np.empty(0, np.uint8)
    raw: npt.NDArray[np.uint8] = plain.view(-1).view(torch.uint8).numpy()
    return raw


def _check_places(places: dict[str, Place], saved: dict[str, tuple[str, int | None]], layout: Layout) -> None:
    for name in places:
        if name not in saved:
            raise StateError(f"the state has no {name}", hint="is it the state of another model?")
    for name, (kind, number) in saved.items():
        place = places.get(name)
        if place is None and kind == "parameter":
            raise StateError(f"the state has {name}, which no tracked module has", hint="is it another model's?")
        if place is None or "parameter" not in (kind, place.kind) or (number is None and place.tensor is None):
            continue
        if number is None or place.tensor is None:
            raise StateError(f"{name} is None {'here' if place.tensor is None else 'in the state'} only")
        check_tensor(place.tensor, name)
        entry = layout.entries[number]
        if (dtype_name(place.tensor.dtype), tuple(place.tensor.shape)) != (entry.dtype, entry.shape):
            raise StateError(
                f"{name} is {dtype_name(place.tensor.dtype)} {tuple(place.tensor.shape)} here "
                f"and {entry.dtype} {entry.shape} in the state"
            )


def _load_places(
    tracked: Tracked,
    places: dict[str, Place],
    saved: dict[str, tuple[str, int | None]],
    fresh: Callable[[int], torch.Tensor],
) -> None:
    filled: dict[int, torch.Tensor] = {}  # number in the state -> the tensor here that has its bits now
    taken: dict[int, int] = {}  # id of a tensor here -> the number whose bits it got
    for name, (kind, number) in saved.items():
        place = places.get(name)
        if place is None:
            value = None if number is None else filled.setdefault(number, fresh(number))
            _register_buffer(tracked, name, value, persistent=kind == "buffer")
            continue
        here = place.tensor
        if place.kind == "parameter":
            if number is None or here is None:
                continue
            if taken.setdefault(id(here), number) != number:
                raise StateError(f"{name} is tied to another parameter here, but not in the state")
            here.copy_(fresh(number))
            filled[number] = here
        elif number is None:
            place.module._buffers[place.attribute] = None
        else:
            place.module._buffers[place.attribute] = filled[number] = _buffer(here, number, fresh, filled, taken)


def _buffer(
    here: torch.Tensor | None,
    number: int,
    fresh: Callable[[int], torch.Tensor],
    filled: dict[int, torch.Tensor],
    taken: dict[int, int],
) -> torch.Tensor:
    if number in filled:
        return filled[number]
    value = fresh(number)
    if here is None:
        return value
    fits = here.dtype == value.dtype and here.shape == value.shape and not _overlaps(here)
    if not fits or taken.setdefault(id(here), number) != number:
        return value.to(here.device)
    here.copy_(value)
    return here


def _register_buffer(tracked: Tracked, name: str, value: torch.Tensor | None, *, persistent: bool) -> None:
    # forward registered it at the donor; here it has not run yet
    root, *path, attribute = name.split(".")
    try:
        tracked.modules[root].get_submodule(".".join(path)).register_buffer(attribute, value, persistent=persistent)
    except (KeyError, AttributeError) as error:
        raise StateError(f"the state has the buffer {name}, which no tracked module can take: {error}") from error


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and n > 1 for stride, n in zip(tensor.stride(), tensor.shape, strict=True))


def _load_object(name: str, other: Any, value: Any) -> None:
    try:
        other.load_state_dict(value)
    except Exception as error:  # the user's own method: whatever it raises, the state did not fit
        raise StateError(f"{name} did not take its state ({type(error).__name__}: {error})") from error
    if isinstance(other, torch.optim.Optimizer):
        _restore_optimizer_dtypes(other, value)


def _restore_optimizer_dtypes(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    # Optimizer.load_state_dict casts floating state to the parameter's dtype: fp32 moments of a bf16 parameter would
    # lose their low bits, so those tensors are put back as they were.
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        state = optimizer.state.get(parameter)
        for key, value in saved["state"].get(number, {}).items():
            if state is None or not isinstance(value, torch.Tensor):
                continue
            now = state.get(key)
            if isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                state[key] = value.to(now.device)
