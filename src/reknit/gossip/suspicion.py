"""How long a suspect may refute (Lifeguard): long while one node alone suspects it, shorter with each other one.

`least` = multiple x log10(n) x probe interval. One who suspects alone waits `suspicion_most` times that; k independent
confirmations bring it down to the least, each a logarithmic step.
"""

from __future__ import annotations

import dataclasses
import math

from .preset import Preset


@dataclasses.dataclass(slots=True)
class Suspicion:
    """One suspect.

    Attributes:
        since: when it was suspected first.
        least: seconds it has at least.
        most: seconds it has while nobody else suspects it.
        needed: independent confirmations after which it has the least.
        by: who suspects it.
        deadline: when it is dead if it does not refute.
    """

    since: float
    least: float
    most: float
    needed: int
    by: set[str]
    deadline: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Reckon the first deadline."""
        self.deadline = self._reckon()

    def confirmed(self, name: str) -> bool:
        """Count one more who suspects; return True if that is news that shortens the time."""
        if name in self.by or len(self.by) > self.needed:
            return False
        self.by.add(name)
        self.deadline = self._reckon()
        return True

    def put_off(self, seconds: float) -> None:
        """Give it that much longer: we did not run meanwhile, and may not have heard it refute."""
        self.since += seconds
        self.deadline = self._reckon()

    def _reckon(self) -> float:
        extra = len(self.by) - 1
        if self.needed < 1 or extra >= self.needed:
            return self.since + (self.least if self.needed >= 1 else self.most)
        share = math.log(extra + 1) / math.log(self.needed + 1)
        return self.since + max(self.least, self.most - (self.most - self.least) * share)


def suspect(preset: Preset, size: int, by: str, now: float) -> Suspicion:
    """Begin a suspicion in a view of so many members."""
    least = preset.suspicion * max(1.0, math.log10(max(1, size))) * preset.probe
    needed = int(preset.suspicion) - 2
    if size - 2 < needed:
        needed = 0  # nobody could confirm
    most = least * preset.suspicion_most if needed else least
    return Suspicion(now, least, most, needed, {by})
