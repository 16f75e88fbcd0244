"""Rumours on their way: one a member, the least told and newest first, each told a bounded number of times."""

from __future__ import annotations

import math

from .rumour import Rumour


class Spread:
    """The rumours that this node still tells others."""

    def __init__(self, multiple: int) -> None:
        self._multiple = multiple
        # how often it was told -> name -> rumour and its bytes, newest last
        self._levels: list[dict[str, tuple[Rumour, int]]] = [{}]
        self._level: dict[str, int] = {}

    def __len__(self) -> int:
        """How many rumours are on their way."""
        return len(self._level)

    def __contains__(self, name: str) -> bool:
        """True if a rumour about this member is on its way."""
        return name in self._level

    def tell(self, rumour: Rumour) -> None:
        """Begin to tell it, instead of what was told of the same member before."""
        self.drop(rumour.name)
        self._levels[0][rumour.name] = rumour, rumour.size
        self._level[rumour.name] = 0

    def drop(self, name: str) -> None:
        """Tell nothing of this member any more."""
        level = self._level.pop(name, None)
        if level is not None:
            del self._levels[level][name]

    def take(self, room: int, size: int, first: Rumour | None = None) -> tuple[Rumour, ...]:
        """Return what fits into so many bytes, told once more now.

        Args:
            room: bytes.
            size: members, which says how often a rumour is told.
            first: goes along in any case, and is not counted.
        """
        taken: list[Rumour] = []
        if first is not None and first.size <= room:
            taken.append(first)
            room -= first.size
        if not self._level:
            return tuple(taken)
        limit = self._multiple * max(1, math.ceil(math.log10(size + 1)))
        moved: list[tuple[int, tuple[Rumour, int]]] = []
        for told, level in enumerate(self._levels):
            for held in reversed(level.values()):
                if held[1] > room:
                    break
                room -= held[1]
                moved.append((told, held))
        for told, held in reversed(moved):
            name = held[0].name
            del self._levels[told][name]
            if told + 1 >= limit:
                del self._level[name]
            else:
                if told + 1 == len(self._levels):
                    self._levels.append({})
                self._levels[told + 1][name] = held
                self._level[name] = told + 1
            if first is None or name != first.name:
                taken.append(held[0])
        return tuple(taken)
