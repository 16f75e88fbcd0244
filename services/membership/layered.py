"""A mapping that never changes, made for many small changes: heartbeats of thousands of senders.

Used like this: `streams = layered(streams).put(key, window)`; the one before stays what it was. A change copies only
the newest entries, which lie over a base that is shared; when they have become as many as the root of its size, a new
base is made. So a change of one of n entries costs about the root of n, where copying a dict costs n.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_LEAST: Final = 16
"""Entries that may lie over the smallest base."""
_GONE: Final[Any] = object()
"""Lies over an entry of the base that is gone."""


class Layered(Mapping[K, V], Generic[K, V]):
    """Entries over a base; in the order in which keys came in, as a dict keeps it."""

    __slots__ = ("_base", "_most", "_over", "_size")

    def __init__(self, base: dict[K, V]) -> None:
        """Begin with these entries, which nobody may change any more."""
        self._base = base
        self._over: dict[K, Any] = {}
        self._size = len(base)
        self._most = max(_LEAST, int((2 * len(base)) ** 0.5))

    def __getitem__(self, key: K) -> V:
        value = self._over[key] if key in self._over else self._base[key]
        if value is _GONE:
            raise KeyError(key)
        found: V = value
        return found

    def __contains__(self, key: object) -> bool:
        return self._over[key] is not _GONE if key in self._over else key in self._base

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        return iter(self._merged()) if self._over else iter(self._base)

    def items(self) -> ItemsView[K, V]:
        """Keys and values."""
        return (self._merged() if self._over else self._base).items()

    def put(self, key: K, value: V) -> Layered[K, V]:
        """Return the mapping with one entry more or changed."""
        return self._with(key, value, self._size + (key not in self))

    def without(self, key: K) -> Layered[K, V]:
        """Return the mapping without an entry; itself if there is none."""
        return self._with(key, _GONE, self._size - 1) if key in self else self

    def _with(self, key: K, value: Any, size: int) -> Layered[K, V]:
        made: Layered[K, V] = object.__new__(Layered)
        made._base, made._over, made._size, made._most = self._base, {**self._over, key: value}, size, self._most
        return made if len(made._over) <= made._most else Layered(made._merged())

    def _merged(self) -> dict[K, V]:
        """The same as a dict."""
        merged = {**self._base, **self._over}
        for key in [k for k, v in self._over.items() if v is _GONE]:
            del merged[key]
        return merged


def layered(mapping: Mapping[K, V]) -> Layered[K, V]:
    """Return the mapping as a layered one: itself if it is one, else a copy."""
    return mapping if isinstance(mapping, Layered) else Layered(dict(mapping))
