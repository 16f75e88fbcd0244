"""What the script gave to `ring.track`: named objects, and the tensors in the modules among them.

Module tensors are found through `_parameters` and `_buffers` of every submodule, so buffers that are not persistent and
buffers that forward assigned anew are there too; a tensor that hangs in several places is one.
"""

# ruff: noqa: SLF001 - the public iterators of Module leave out what registered None and what is not persistent

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from reknit.core.errors import StateError

from .skeleton import check_tensor, dtype_name

Kind = Literal["parameter", "buffer", "transient"]
"""transient: a buffer that `Module.state_dict()` leaves out (persistent=False)."""


@runtime_checkable
class Stateful(Protocol):
    """Anything with the two methods that torch's optimizers and schedulers have."""

    def state_dict(self) -> Any:
        """Return the state as nested plain values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take over a state that `state_dict` returned."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a module tensor hangs.

    Attributes:
        name: tracked name, path of the submodule and the attribute, joined by dots.
        kind: what it is there.
        module: the submodule that owns it.
        attribute: its name in the submodule.
        tensor: the tensor, or None where the submodule registered nothing yet.
    """

    name: str
    kind: Kind
    module: torch.nn.Module
    attribute: str
    tensor: torch.Tensor | None


OUR_OWN = frozenset({"reknit_bounds"})
"""Names under which reknit itself tracks something; a state may have it or lack it (see `transport.bounds`)."""


class Tracked:
    """The tracked objects, by name, in the order they were given.

    `add` takes more of them; everything else only reads.
    """

    def __init__(self, **objects: object) -> None:
        self.objects: dict[str, object] = {}
        self.add(**objects)

    def add(self, **objects: object) -> None:
        """Track more objects.

        Raises:
            StateError: a name is taken by another object, or an object has no state that can be taken.
        """
        for name, value in objects.items():
            if not name.isidentifier():
                raise StateError(f"{name!r} is not a name to track an object by", hint="use a plain identifier")
            if self.objects.get(name, value) is not value:
                raise StateError(
                    f"{name} is tracked already, and is another object", hint="give each object its own name"
                )
            if not isinstance(value, torch.nn.Module) and not isinstance(value, Stateful):
                raise StateError(
                    f"{name} is a {type(value).__name__} without state_dict() and load_state_dict()",
                    hint="track modules, optimizers, schedulers, or an object of yours with these two methods",
                )
        self.objects.update(objects)

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The modules among the tracked objects."""
        return {name: x for name, x in self.objects.items() if isinstance(x, torch.nn.Module)}

    @property
    def others(self) -> dict[str, Stateful]:
        """All tracked objects that are no modules."""
        return {
            name: x
            for name, x in self.objects.items()
            if not isinstance(x, torch.nn.Module) and isinstance(x, Stateful)
        }

    def places(self) -> Iterator[Place]:
        """Yield every place of a module tensor: all parameters first, then all buffers; shared tensors repeatedly."""
        owners = [
            (f"{name}.{path}" if path else name, module)
            for name, root in self.modules.items()
            for path, module in root.named_modules()
        ]
        for prefix, module in owners:
            for attribute, parameter in module._parameters.items():
                yield Place(f"{prefix}.{attribute}", "parameter", module, attribute, parameter)
        for prefix, module in owners:
            for attribute, buffer in module._buffers.items():
                kind: Kind = "transient" if attribute in module._non_persistent_buffers_set else "buffer"
                yield Place(f"{prefix}.{attribute}", kind, module, attribute, buffer)

    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return (name, parameter) of all modules, each parameter once, in the order of the layout."""
        return [
            (place.name, place.tensor)
            for place in self._once()
            if place.kind == "parameter" and isinstance(place.tensor, torch.nn.Parameter)
        ]

    def trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return (name, parameter) of those that get a gradient: they require one and are in no running average.

        `torch.optim.swa_utils.AveragedModel` copies parameters with their `requires_grad`, but nobody trains the copy.
        """
        averages = [
            part
            for m in self.modules.values()
            for part in m.modules()
            if isinstance(part, torch.optim.swa_utils.AveragedModel)
        ]
        averaged = {id(p) for average in averages for p in average.parameters()}
        return [(name, p) for name, p in self.parameters() if p.requires_grad and id(p) not in averaged]

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Return (name, buffer) of all modules, each buffer once, also those not persistent, in the layout's order."""
        return [(p.name, p.tensor) for p in self._once() if p.kind != "parameter" and p.tensor is not None]

    def signature(self) -> tuple[str, ...]:
        """Return one `name dtype shape` for each module tensor: parameters, then buffers.

        Raises:
            StateError: a tensor of them cannot travel.
        """
        lines = []
        for place in self._once():
            if place.tensor is not None:
                check_tensor(place.tensor, place.name)
                lines.append(signature_line(place.name, place.tensor))
        return tuple(lines)

    def check(self) -> None:
        """Check that optimizers update only tensors that are tracked.

        Raises:
            StateError: an optimizer updates a tensor of no tracked module: it would differ between workers.
        """
        known = {id(place.tensor) for place in self.places()}
        for name, optimizer in self.others.items():
            if not isinstance(optimizer, torch.optim.Optimizer):
                continue
            for g, group in enumerate(optimizer.param_groups):
                for i, tensor in enumerate(group["params"]):
                    if id(tensor) not in known:
                        raise StateError(
                            f"{name} updates a tensor that is in no tracked module: group {g}, number {i}, "
                            f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}",
                            hint="track the module that owns it as well: ring.track(model=model, optimizer=optimizer)",
                        )

    def prime(self) -> None:
        """Let each `GradScaler` make its scale, which it does at first use.

        A worker without a micro-batch (a spare, a learner) would never use it, and `scaler.step` would fail.
        """
        device = next((p.device for _, p in self.parameters()), torch.device("cpu"))
        for other in self.others.values():
            if isinstance(other, torch.amp.GradScaler) and other.is_enabled():
                other.scale(torch.zeros((), device=device))

    def _once(self) -> Iterator[Place]:
        seen: set[int] = set()
        for place in self.places():
            if place.tensor is not None and id(place.tensor) not in seen:
                seen.add(id(place.tensor))
                yield place


def signature_line(name: str, tensor: torch.Tensor) -> str:
    """Return `name dtype shape` of a tensor, e.g. `model.0.weight float32 (3, 4)`."""
    return f"{name} {dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
