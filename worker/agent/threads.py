"""How many intra-op threads each worker of a node gets: decided once, before torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threads:
    """A number of threads and where it comes from, in words."""

    number: int
    why: str


def choose(asked: int, environ: Mapping[str, str]) -> Threads:
    """Decide the intra-op threads of a worker.

    The number of threads changes the bits of a gradient. So what nobody has asked for must not depend on cores or on
    how many workers there are: one.

    Args:
        asked: what the launcher was told (`--threads`), 0 for nothing.
        environ: the agent's environment; a usable OMP_NUM_THREADS there is the user's word.
    """
    if asked > 0:
        return Threads(asked, "as asked")
    # OMP_NUM_THREADS may be a list, one number a nesting level: the first is ours
    said = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if said.isdecimal() and int(said) > 0:
        return Threads(int(said), "OMP_NUM_THREADS")
    return Threads(1, "the same for any number of workers, so that the weights are; --threads for more")
