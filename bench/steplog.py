"""What workers note of their steps, read while they write, and what follows from it about a kill.

`Reader` follows the files; all else is pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import longest_gap


@dataclass(frozen=True, slots=True)
class Done:
    """One step that one process has completed.

    Attributes:
        generation: world (reknit) or restart (torchrun) in which it was completed.
        time: wall time of the completion, seconds.
        slots: micro-batches of the step that this process computed itself; 0 while it only follows.
    """

    step: int
    generation: int
    time: float
    pid: int
    worker: str
    slots: int


def parse(line: str) -> Done | None:
    """Read one line, None if it is torn."""
    try:
        return Done(**json.loads(line))
    except (ValueError, TypeError):
        return None


class Reader:
    """Reads what was added to the files of a folder since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[Path, int] = {}
        self.done: list[Done] = []

    def look(self) -> list[Done]:
        """Read on; returns all that was ever read, in no particular order between processes."""
        for file in self._folder.glob("*.jsonl"):
            with file.open("rb") as lines:
                lines.seek(self._places.get(file, 0))
                text = lines.read()
            whole = text.rpartition(b"\n")[0]
            if whole:
                self._places[file] = self._places.get(file, 0) + len(whole) + 1
                self.done += [done for line in whole.decode().splitlines() if (done := parse(line)) is not None]
        return self.done


def newest(done: Iterable[Done]) -> dict[int, Done]:
    """Return each process's last completed step."""
    last: dict[int, Done] = {}
    for one in done:
        if one.pid not in last or one.time >= last[one.pid].time:
            last[one.pid] = one
    return last


def whole(done: Iterable[Done], alive: Collection[int], workers: int, since: float) -> bool:
    """True if so many living processes all computed part of their last step in one world, later than `since`."""
    last = [one for pid, one in newest(done).items() if pid in alive]
    together = len({one.generation for one in last}) == 1
    return len(last) == workers and together and all(one.slots > 0 and one.time > since for one in last)


def mended_at(done: Sequence[Done], survivors: Collection[int], killed_at: float) -> float | None:
    """When the last survivor had completed its first step of a newer world; None while one has not."""
    before = max((one.generation for one in done if one.pid in survivors and one.time <= killed_at), default=0)
    firsts = []
    for pid in survivors:
        times = [o.time for o in done if o.pid == pid and o.time > killed_at and o.generation > before]
        if not times:
            return None
        firsts.append(min(times))
    return max(firsts, default=None)


def restarted_at(done: Sequence[Done], before: Collection[int], killed_at: float) -> float | None:
    """When the first process that did not exist before the kill had completed a step; None while none has."""
    return min((one.time for one in done if one.pid not in before and one.time > killed_at), default=None)


def steps_lost(done: Sequence[Done], survivors: Collection[int], killed_at: float, until: float) -> int:
    """Count steps that a survivor had completed before the kill and that were computed again after it.

    Computed again means: by a new process, or by one that had completed the step itself. A survivor that finishes
    a step which others had completed a moment before the kill loses nothing.
    """
    completed = {one.step for one in done if one.pid in survivors and one.time <= killed_at}
    by = {(one.pid, one.step) for one in done if one.time <= killed_at}
    old = {one.pid for one in done if one.time <= killed_at}
    again = {
        one.step
        for one in done
        if killed_at < one.time <= until and one.slots > 0 and (one.pid not in old or (one.pid, one.step) in by)
    }
    return len(completed & again)


def pause(done: Sequence[Done], pids: Collection[int], since: float, until: float) -> float:
    """Return the longest time between two steps of any of these processes between two moments."""
    return max(
        (longest_gap(sorted(o.time for o in done if o.pid == pid and since <= o.time <= until)) for pid in pids),
        default=0.0,
    )
