"""What happened, line by line, as one hash: two runs of one seed have the same.

Every line is hashed; lines that a reader wants (worlds, faults, deaths) are kept too.
"""

from __future__ import annotations

import xxhash


class Trace:
    """A hash over all lines, and those that are kept.

    Attributes:
        lines: what is worth reading, with the moment in front.
        noted: how many lines there were, kept or not.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.noted = 0
        self._hash = xxhash.xxh3_64()

    def note(self, now: float, *words: object, keep: bool = False) -> None:
        """Add one line."""
        line = f"{now:.6f} {' '.join(map(str, words))}"
        self._hash.update(line.encode())
        self.noted += 1
        if keep:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """Hash of all lines so far, hexadecimal."""
        return self._hash.hexdigest()
