"""How well this node itself does: Lifeguard's local health (Dadgar, Phillips, Currey 2018).

Who gets no answers, and not even word from those it asked for help, is more likely slow itself than surrounded by the
dead. The score stretches the interval between probes and so the time that others have to answer.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class Health:
    """A score from 0 (well) to `most` - 1."""

    most: int
    score: int = 0

    def worse(self, by: int = 1) -> None:
        """Something speaks against us: a probe without an answer, a suspicion that had to be refuted."""
        self.score = min(self.most - 1, self.score + by)

    def better(self) -> None:
        """A probe was answered in time."""
        self.score = max(0, self.score - 1)

    def stretched(self, seconds: float) -> float:
        """Return a time-out as long as this node needs."""
        return seconds * (self.score + 1)
