"""Sample order as a pure function: which samples a slot of a step holds, for any worker, with no state, no table.

A step takes `slots x micro_batch` samples of the epoch's permutation; the last step of an epoch takes what is left,
spread as evenly as possible over as few slots as hold it. The permutation is a four-round Feistel network over the
smallest even-bit domain that holds N, walked until it falls inside [0, N) (cycle-walking, Black and Rogaway 2002):
a bijection with O(1) memory at any N.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import xxhash

from reknit.core.errors import UsageError

_ROUNDS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Course:
    """The whole course of a run over its data.

    Attributes:
        samples: dataset length N, at least 1.
        micro_batch: samples a slot.
        slots: slots a step, V.
        epochs: passes over the data.
        seed: root of the order and of every slot's random numbers.
    """

    samples: int
    micro_batch: int
    slots: int
    epochs: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("samples", "micro_batch", "slots", "epochs"):
            if getattr(self, name) < 1:
                what = {"samples": "the dataset is empty: samples"}.get(name, name)
                raise UsageError(f"{what} is {getattr(self, name)}, must be at least 1", hint=f"check {name}")

    @property
    def batch(self) -> int:
        """Samples of a full step (global batch)."""
        return self.slots * self.micro_batch

    @property
    def steps_an_epoch(self) -> int:
        """Steps in one epoch, the uneven last one included."""
        return -(-self.samples // self.batch)

    @property
    def steps(self) -> int:
        """Steps in the whole run."""
        return self.steps_an_epoch * self.epochs

    def epoch_of(self, step: int) -> int:
        """Epoch of a step."""
        return step // self.steps_an_epoch

    def span(self, step: int) -> tuple[int, int]:
        """Positions `[first, end)` in the epoch's permutation that the step takes."""
        first = (step % self.steps_an_epoch) * self.batch
        return first, min(first + self.batch, self.samples)

    def slot_span(self, step: int, slot: int) -> tuple[int, int]:
        """Positions `[first, end)` in the epoch's permutation that one slot takes; empty for unused slots of a tail."""
        first, end = self.span(step)
        count = end - first
        used = -(-count // self.micro_batch)
        if slot >= used:
            return end, end
        size, extra = divmod(count, used)
        begin = first + slot * size + min(slot, extra)
        return begin, begin + size + (1 if slot < extra else 0)

    def slot_samples(self, step: int, slot: int) -> npt.NDArray[np.int64]:
        """Sample ids of one slot, shape (n,), n <= micro_batch."""
        first, end = self.slot_span(step, slot)
        return permute(np.arange(first, end, dtype=np.uint64), self.samples, self.seed, self.epoch_of(step))


def permute(positions: npt.NDArray[np.uint64], samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Map positions in [0, samples) to sample ids, a bijection for each (samples, seed, epoch)."""
    if samples == 1:
        return np.zeros(len(positions), dtype=np.int64)
    half = max(1, -(-(samples - 1).bit_length() // 2))
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    keys = [np.uint64(xxhash.xxh3_64_intdigest(f"order/{seed}/{epoch}/{r}".encode())) for r in range(_ROUNDS)]
    out = positions.astype(np.uint64, copy=True)
    todo = np.ones(len(out), dtype=bool)
    while todo.any():
        x = out[todo]
        left, right = x >> shift, x & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        x = (left << shift) | right
        out[todo] = x
        todo[todo] = x >= np.uint64(samples)
    return out.astype(np.int64)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    # splitmix64's finalizer (Steele, Lea and Flood 2014): every input bit reaches every output bit
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def slot_seed(seed: int, step: int, slot: int) -> int:
    """63-bit seed of one slot's random numbers (torch, numpy, random)."""
    return xxhash.xxh3_64_intdigest(f"slot/{seed}/{step}/{slot}".encode()) >> 1
