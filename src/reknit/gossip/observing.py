"""The K rings: which of the members that this node watches do not answer.

A level, not an edge: a subject is silent while nothing it acknowledged came for `silence`, and no longer. An
acknowledgement counts however late it is: slow is not dead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .preset import Preset

FEW = 4
"""Below so many subjects their silence says little about us: then it counts whether anybody at all is heard."""


class Observing:
    """The subjects of one node.

    Attributes:
        silent: those that do not answer, as of the last `look`.
        sick: True if most of them are silent: then it is us, and nothing is said of them.
    """

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self._heard: dict[str, float] = {}
        self._anybody = -math.inf
        self.silent: frozenset[str] = frozenset()
        self.sick = False

    @property
    def subjects(self) -> tuple[str, ...]:
        """Whom this node watches."""
        return tuple(self._heard)

    def watch(self, subjects: Iterable[str], now: float) -> None:
        """Watch these from now on; a new one has the whole time to answer."""
        self._heard = {name: self._heard.get(name, now) for name in subjects}

    def heard(self, name: str, now: float) -> None:
        """A member has acknowledged something."""
        self._anybody = now
        if name in self._heard:
            self._heard[name] = now

    def put_off(self, seconds: float) -> None:
        """We did not run for so long: that is nobody's silence."""
        self._heard = {name: at + seconds for name, at in self._heard.items()}

    def look(self, now: float) -> bool:
        """Find out who is silent; return True if the report has changed."""
        before = self.silent, self.sick
        silence = self._preset.silence
        silent = frozenset(name for name, at in self._heard.items() if now - at >= silence - 1e-9)
        most = len(silent) > self._preset.sick * len(self._heard)
        self.sick = most and (len(self._heard) >= FEW or now - self._anybody >= silence - 1e-9)
        self.silent = frozenset() if self.sick else silent
        return before != (self.silent, self.sick)

    def next_look(self, now: float) -> float:
        """When the next subject becomes silent if it goes on saying nothing."""
        times = (at + self._preset.silence for at in self._heard.values())
        return min((t for t in times if t > now), default=math.inf)
