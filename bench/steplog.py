"""What workers note of their steps, read while they write, and what follows from it about a fault, a join or a drain.

`Reader` follows the files; all else is pure. A step is *committed* by a worker at the moment that it notes: its reduced
gradient was complete and applied.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


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

    def forget(self, before: float) -> None:
        """Drop what is older than a moment, but each process's last step: a long run need not look at it again."""
        kept = set(map(id, newest(self.done).values()))
        self.done = [one for one in self.done if one.time >= before or id(one) in kept]


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


def active_at(done: Iterable[Done], pid: int, after: int = -1) -> float | None:
    """When a process had completed the first step of which it computed a part itself; None while it has not.

    Args:
        done: the workers' notes.
        pid: the process.
        after: only a later generation counts: a newcomer may compute a slot to rehearse, of a step of the others.
    """
    return min((one.time for one in done if one.pid == pid and one.slots > 0 and one.generation > after), default=None)


def longest_gap(done: Sequence[Done], pids: Collection[int], since: float, until: float) -> float:
    """Return the longest time that one of these processes went without a step in a window, seconds.

    A gap belongs to the window when it ends in it, so one that began before `since` counts whole; one that is still
    open at `until` counts as far as it has come.
    """
    longest = 0.0
    for times in _times(done, pids):
        ends = [time for time in times if time <= until]
        gaps = (b - a for a, b in itertools.pairwise([*ends, until]) if b > since)
        longest = max(longest, *gaps, 0.0)
    return longest


def excess_gap(done: Sequence[Done], pids: Collection[int], since: float, until: float, normal: float) -> float:
    """Return by how many seconds the longest gap of a window is longer than a normal step; 0 if it is not."""
    return max(0.0, longest_gap(done, pids, since, until) - normal)


def gaps_over(
    done: Sequence[Done], pids: Collection[int], since: float, until: float, seconds: float
) -> list[tuple[float, float]]:
    """Return (end, length) of all gaps of these processes that end in a window and are longer than so many seconds."""
    pairs = (pair for times in _times(done, pids) for pair in itertools.pairwise(times))
    return sorted((b, b - a) for a, b in pairs if since < b <= until and b - a > seconds)


def step_seconds(done: Sequence[Done], pids: Collection[int], since: float, until: float) -> float | None:
    """Return the median time between two steps of one process, over all of these in a window; None: too few steps."""
    took = [
        b - a for times in _times(done, pids) for a, b in itertools.pairwise(t for t in times if since <= t <= until)
    ]
    return statistics.median(took) if took else None


def _times(done: Iterable[Done], pids: Collection[int]) -> Iterator[list[float]]:
    by_pid: dict[int, list[float]] = {pid: [] for pid in pids}
    for one in done:
        if one.pid in by_pid:
            by_pid[one.pid].append(one.time)
    return (sorted(times) for times in by_pid.values())
