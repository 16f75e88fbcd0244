"""Which transport a run uses, and what that needs: checked before anything is linked, with errors to act on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist

from reknit.core.errors import UsageError
from reknit.worker.ring.pieces import Buffer, Section, Shape

from . import device_point, nccl, scale
from .bounds import Bounds
from .buckets import lay_out
from .collective import Collective, Meet
from .device_point import DevicePoint
from .gloo import GlooGroup
from .pinned import fitting
from .point import HostPoint, Point
from .port import Tcp, Transport

NAMES = ("tcp", "gloo", "nccl")


class Choice:
    """A transport that can be made once the rest of the session is there.

    Args:
        name: `tcp`, `gloo` or `nccl`.
        shape: of the flat buffer.
        buckets: of the flat buffer.
        slots: V.
        parameters: that are trained.

    Attributes:
        shape: of the buffers that the transport works on.
        bounds: to be tracked, and given each result; None if the transport has none.

    Raises:
        UsageError: there is no such transport, or not here, or it does not fit the parameters.
    """

    def __init__(
        self, name: str, shape: Shape, buckets: Sequence[Section], slots: int, parameters: Iterable[torch.Tensor]
    ) -> None:
        tensors = list(parameters)
        self.name = name
        self.device = check(name, tensors)
        self.bounds = Bounds(shape, buckets) if name != "tcp" else None
        whole = self.bounds.shape if self.bounds is not None else shape
        self.shape = fitting(whole, {t.device.type for t in tensors})
        self._layout = shape, buckets
        self._slots = slots

    def applied(self, result: Buffer) -> None:
        """The main thread has applied this result."""
        if self.bounds is not None:
            self.bounds.take(result)

    def make(self, host: str, moved: Callable[[], bool]) -> Transport:
        """Make it.

        Args:
            host: address of this machine that all members can reach.
            moved: True once a newer world exists.

        Raises:
            UsageError: there are more slots than can be added up exactly.
        """
        if self.bounds is None:
            return Tcp()
        if self._slots > scale.MOST_SLOTS:
            raise UsageError(
                f"transport {self.name} adds up at most {scale.MOST_SLOTS} slots exactly, not {self._slots}",
                hint="larger micro-batches and fewer slots, or --transport tcp",
            )
        shape, buckets = self._layout
        if self.name == "nccl":
            nccl.prepare()
            lanes = lay_out(shape, buckets, device_point.BLOCK, device_point.BLOCK)
            point: Point = DevicePoint(lanes, self._slots, self.device)
            meet: Meet = functools.partial(nccl.NcclGroup.meet, device=self.device)
        else:
            point = HostPoint(lay_out(shape, buckets), self._slots)
            meet = functools.partial(GlooGroup.meet, host=host)
        return Collective(point, self.bounds, meet, moved)


def check(name: str, parameters: Iterable[torch.Tensor]) -> torch.device:
    """Check that a transport can work here; returns the device that it adds up on.

    Raises:
        UsageError: it cannot, and why.
    """
    available(name)
    if name != "nccl":
        return torch.device("cpu")
    devices = sorted({str(p.device) for p in parameters})
    if len(devices) != 1 or not devices[0].startswith("cuda"):
        raise UsageError(
            f"transport nccl needs all parameters on one GPU, here they are on {', '.join(devices) or 'none'}",
            hint="move the model to one GPU before ring.steps, or use --transport tcp: it takes any mixture of devices",
        )
    return torch.device(devices[0])


def available(name: str) -> None:
    """Check that this machine has what a transport needs, whatever is trained.

    Raises:
        UsageError: it has not, or there is no such transport.
    """
    if name not in NAMES:
        raise UsageError(f"there is no transport {name!r}", hint=f"one of {', '.join(NAMES)}")
    if name == "tcp":
        return
    if name == "gloo":
        if not (dist.is_available() and dist.is_gloo_available()):
            raise UsageError("transport gloo: this build of torch has no gloo", hint="use --transport tcp")
        return
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no usable GPU"
        raise UsageError(f"transport nccl needs CUDA, and {why}", hint="use --transport tcp, or gloo")
    if not (dist.is_available() and dist.is_nccl_available()):
        raise UsageError("transport nccl: this build of torch has no NCCL", hint="use --transport tcp, or gloo")
