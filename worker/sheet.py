"""What is known of one evaluation: scores by micro-batch, of which the first on the log counts; pure.

Every worker reads the same log, so every worker's sheet comes to hold the same scores, and their fold in the order of
the micro-batches has the same bits everywhere.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Container, Iterable, Mapping, Sequence

from reknit.core.events import Scores

from .means import Sums, fold


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A second measurement of a micro-batch that differs from the first.

    Attributes:
        number: the micro-batch.
        first: whose measurement counts.
        detail: what differs, in words.
    """

    number: int
    first: str
    detail: str


class Sheet(Container[int]):
    """Scores of one evaluation.

    Attributes:
        voids: how often scores were taken off it.
    """

    def __init__(self) -> None:
        self.voids = 0
        self._scores: dict[int, Sums] = {}
        self._by: dict[int, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._scores)

    def __contains__(self, number: object) -> bool:
        return number in self._scores

    def take(self, worker: str, generation: int, scores: Iterable[tuple[int, Sums]]) -> list[Difference]:
        """Take in what a worker has measured; return what differs from what was known before."""
        differences = []
        for number, sums in scores:
            known = self._scores.get(number)
            if known is None:
                self._scores[number] = sums
                self._by[number] = (worker, generation)
            elif detail := difference(known, sums):
                differences.append(Difference(number, self._by[number][0], detail))
        return differences

    def void(self, generation: int) -> None:
        """Forget what was measured before this generation: the run went on from an older state."""
        self.voids += 1
        for number in [n for n, (_, measured) in self._by.items() if measured < generation]:
            del self._scores[number], self._by[number]

    def means(self, count: int) -> dict[str, float]:
        """Return the means over micro-batches 0 to `count` - 1, all of which must be there."""
        return fold(self._scores[number] for number in range(count))


def difference(first: Sums, second: Sums) -> str:
    """Return in words where two measurements of a micro-batch differ in their bits; empty if they do not."""
    for name in sorted({*first, *second}):
        a, b = first.get(name), second.get(name)
        if a is None or b is None:
            return f"{name} was measured only {'the second' if a is None else 'the first'} time"
        if struct.pack("<2d", *a) != struct.pack("<2d", *b):
            return f"{name} is {a[0]!r} / {a[1]!r} there, {b[0]!r} / {b[1]!r} here"
    return ""


def pack(measured: Mapping[int, Sums]) -> tuple[Scores, ...]:
    """Scores as they travel: micro-batches with the same metrics together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number in sorted(measured):
        groups.setdefault(tuple(sorted(measured[number])), []).append(number)
    return tuple(
        Scores(
            names=names,
            numbers=tuple(numbers),
            sums=tuple(measured[number][name][0] for number in numbers for name in names),
            weights=tuple(measured[number][name][1] for number in numbers for name in names),
        )
        for names, numbers in groups.items()
    )


def unpack(packed: Sequence[Scores]) -> list[tuple[int, Sums]]:
    """The reverse of `pack`.

    Raises:
        ValueError: sums or weights are not as many as names and numbers ask for.
    """
    found: list[tuple[int, Sums]] = []
    for scores in packed:
        width = len(scores.names)
        pairs = list(zip(scores.sums, scores.weights, strict=True))
        if len(pairs) != width * len(scores.numbers):
            raise ValueError(f"{len(pairs)} scores for {len(scores.numbers)} micro-batches of {width} metrics")
        for place, number in enumerate(scores.numbers):
            row = pairs[place * width : (place + 1) * width]
            found.append((number, dict(zip(scores.names, row, strict=True))))
    return found
