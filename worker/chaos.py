"""Faults on purpose: flips one bit of what this worker holds, where it lies, so that it can be seen to be found.

Obeys `job.chaos` only where the job was submitted for it (`WorkerContext.chaos`). A bit of the weights or of an
optimizer's state is flipped by whatever thread hears of it, in the middle of a forward if it so happens; a bit of a
result by the main thread, just before the result is applied.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import torch

from reknit.core import log
from reknit.core.events import ChaosAsked

from .ring.pieces import Buffer
from .tracked import Tracked

_DELAY = 0.002
"""Seconds, at most, from the moment a step begins to a fault that was asked for in it: so that it meets a forward."""
_log = log.get("chaos")
_chance = random.SystemRandom()
"""Not `random` itself: that is the script's, and seeded for each slot."""


class Chaos:
    """Does what is asked for, now or when its step has come.

    Args:
        worker: who we are; what is asked of others is not ours.
        tracked: what we hold.
        allowed: the job was submitted with `chaos`.

    Attributes:
        done: what was flipped, in words.
    """

    def __init__(self, worker: str, tracked: Tracked, *, allowed: bool) -> None:
        self.done: list[str] = []
        self._worker = worker
        self._tracked = tracked
        self._allowed = allowed
        self._waiting: list[ChaosAsked] = []
        self._lock = threading.Lock()

    def hear(self, asked: ChaosAsked) -> None:
        """Something is asked of somebody (bus thread)."""
        if asked.worker != self._worker:
            return
        if not self._allowed:
            _log.warning("refused: this job was not submitted with --allow-chaos", fault=asked.fault)
            return
        if asked.at_step < 0 and asked.target != "result":
            self._flip(asked)
            return
        with self._lock:
            self._waiting.append(asked)

    def at(self, step: int) -> None:
        """The main thread computes in this step: faults that wait for it come from a thread of their own."""
        if not self._waiting:
            return
        for asked in self._due(step, {"weights", "moments"}):
            threading.Timer(_chance.uniform(0.0, _DELAY), self._flip, (asked,)).start()

    def before_apply(self, step: int, gradient: Buffer) -> None:
        """The main thread is about to apply a result of which this is the gradient."""
        if not self._waiting:
            return
        for asked in self._due(step, {"result"}):
            self._note(asked, "result", flip(gradient.data, asked.bit))

    def _due(self, step: int, targets: set[str]) -> list[ChaosAsked]:
        with self._lock:
            due = [a for a in self._waiting if a.target in targets and a.at_step <= step]
            self._waiting = [a for a in self._waiting if a not in due]
        return due

    def _flip(self, asked: ChaosAsked) -> None:
        held = list(self._weights() if asked.target == "weights" else self._moments())
        sizes = [8 * tensor.untyped_storage().nbytes() for _, tensor in held]
        if not sum(sizes):
            _log.warning("nothing to flip", target=asked.target)
            return
        at = asked.bit % sum(sizes) if asked.bit >= 0 else _chance.randrange(sum(sizes))
        for (name, tensor), size in zip(held, sizes, strict=True):
            if at < size:
                flat = torch.empty(0, dtype=torch.uint8).set_(tensor.detach().untyped_storage())
                self._note(asked, name, flip(flat.numpy().data, at))
                return
            at -= size

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((name, p) for name, p in self._tracked.parameters() if p.device.type == "cpu")

    def _moments(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, other in self._tracked.others.items():
            if not isinstance(other, torch.optim.Optimizer):
                continue
            for number, held in enumerate(list(other.state.values())):
                for key, value in list(held.items()):
                    if isinstance(value, torch.Tensor) and value.dim() and value.device.type == "cpu":
                        yield f"{name}.state.{number}.{key}", value

    def _note(self, asked: ChaosAsked, name: str, bit: int) -> None:
        self.done.append(f"{asked.target}: bit {bit} of {name}")
        _log.warning("a bit was flipped, as asked", target=asked.target, where=name, bit=bit)


def flip(raw: memoryview, bit: int = -1) -> int:
    """Flip one bit in place; returns which. `bit` beyond the end counts on from the beginning, -1 is any."""
    flat = raw.cast("B")
    bit = bit % (8 * flat.nbytes) if bit >= 0 else _chance.randrange(8 * flat.nbytes)
    flat[bit // 8] ^= 1 << bit % 8
    return bit
