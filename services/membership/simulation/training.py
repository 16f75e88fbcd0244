"""Whether the ring of the newest world steps, and who really has the run's state: what workers would know by training.

One ring for all: as soon as a member cannot take part (its host is gone, it is stopped, it is cut off) everybody waits
in the ring; as soon as a new world without such a member is there, they step again. Whoever learns beside the ring can
do so while somebody who has the state is in a world that runs.
"""

from __future__ import annotations

from collections.abc import Callable

from reknit.core.events import StepsCommitted, WorldChanged

from .broker import Entry
from .clock import Clock

STEP = 0.2
"""Seconds of a step."""

Life = tuple[str, int]


class Training:
    """The ring as all workers together see it.

    Attributes:
        world: the newest, None before the first.
        holders: lives that have the state.
        halted: since when no step ends, None while they do.
        heard: generation -> when the last worker heard of that world.
    """

    def __init__(self, clock: Clock, takes_part: Callable[[Life], bool]) -> None:
        self._clock = clock
        self._takes_part = takes_part
        self.world: WorldChanged | None = None
        self.holders: set[Life] = set()
        self.halted: float | None = 0.0
        self.heard: dict[int, float] = {}
        self._members: frozenset[Life] = frozenset()
        self._stepped = 0.0  # seconds of steps before the present stretch
        self._since = 0.0

    @property
    def members(self) -> frozenset[Life]:
        """Lives in the newest world."""
        return self._members

    @property
    def step(self) -> int:
        """Steps committed."""
        seconds = self._stepped + (0.0 if self.halted is not None else self._clock.now - self._since)
        return int(seconds / STEP)

    @property
    def teaches(self) -> bool:
        """True if somebody in a world that runs has the state."""
        running = self.world is not None and self.world.status == "running"
        return running and any(self._takes_part(life) for life in self.holders & self._members)

    def on_world(self, entry: Entry) -> None:
        """A world was appended."""
        if not isinstance(entry.event, WorldChanged):
            return
        before, self.world = self._members, entry.event
        self._members = frozenset((m.worker, m.incarnation) for m in entry.event.members)
        self.holders -= before - self._members  # who was left out has to learn what it misses
        if entry.event.status == "running" and not self.holders & self._members:
            self.holders |= self._members  # nobody has it: all begin together
        self.look()

    def look(self) -> None:
        """Somebody fell, came back, or the world changed: do they step?"""
        running = self.world is not None and self.world.status == "running"
        steps = running and all(map(self._takes_part, self._members))
        now = self._clock.now
        if steps and self.halted is not None:
            self.halted, self._since = None, now
        elif not steps and self.halted is None:
            self._stepped += now - self._since
            self.halted = now

    def committed(self, first: int) -> StepsCommitted | None:
        """What the owner of slot 0 publishes of the steps since; None if there are none."""
        if self.step <= first or self.world is None:
            return None
        return StepsCommitted(
            run=self.world.run, first=first, last=self.step - 1, generation=self.world.generation, ranges=(), slots=1
        )
