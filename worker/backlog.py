"""How many results may wait: for a candidate that reads them slowly, or that applies them slowly."""

from __future__ import annotations

import dataclasses

from .memory import free_memory

_BYTES = 1 << 30
_SHARE = 4
_RESULTS = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """Bounds of one backlog; it is exceeded by results beyond `least` that are more than `most` or hold more bytes.

    Attributes:
        bytes: of all results that wait.
        most: results, however small.
        least: results that may wait however large they are.
    """

    bytes: int
    most: int = _RESULTS
    least: int = 2

    def exceeded(self, results: int, each: int) -> bool:
        """True if so many results of `each` bytes are too many."""
        return results > self.least and (results > self.most or results * each > self.bytes)


def of_a_feed() -> Limit:
    """Of one feed: at most 1 GiB, and no more than a quarter of the memory that is free now."""
    return Limit(min(_BYTES, free_memory() // _SHARE))


def of_a_candidate() -> Limit:
    """Of a candidate: a quarter of the memory that is free now, since several results come while it gets the state."""
    return Limit(free_memory() // _SHARE)
