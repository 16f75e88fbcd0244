"""How many intra-op threads each worker of a node gets: decided once, before torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threads:
    """A number of threads and where it comes from, in words."""

    number: int
    why: str


def choose(asked: int, environ: Mapping[str, str], cores: int, workers: int) -> Threads:
    """Decide the intra-op threads of a worker.

    Args:
        asked: what the launcher was told (`--threads`), 0 for nothing.
        environ: the agent's environment; a usable OMP_NUM_THREADS there is the user's word.
        cores: cores that this node's processes may use.
        workers: workers that the node begins with.
    """
    if asked > 0:
        return Threads(asked, "as asked")
    # OMP_NUM_THREADS may be a list, one number a nesting level: the first is ours
    said = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if said.isdecimal() and int(said) > 0:
        return Threads(int(said), "OMP_NUM_THREADS")
    number = max(1, cores // max(1, workers))
    return Threads(number, f"{cores} cores / {workers} workers")
