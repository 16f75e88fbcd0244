"""Which processes belong to which worker, so that all of them end with it.

A process belongs to a worker if it is in the worker's session, descends from it, was seen to descend from it earlier
(`observe`), or was executed with the worker's id in its environment. What remains are processes that left the
session, lost their parent and were never seen before: they have become children of the guard, and a new one there
right after a worker's death is counted to that worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .procfs import Entry

Table = Mapping[int, Entry]


def descendants(table: Table, roots: Iterable[int]) -> set[int]:
    """Return all processes below the roots, without the roots."""
    children: dict[int, list[int]] = {}
    for pid, row in table.items():
        children.setdefault(row.parent, []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


class Kin:
    """Remembers who descended from whom.

    Args:
        marked: returns the worker id in the environment of a process, empty if there is none.
    """

    def __init__(self, marked: Callable[[int], str]) -> None:
        self._marked = marked
        self._owners: dict[tuple[int, int], str] = {}
        self._strangers: set[tuple[int, int]] = set()

    def observe(self, table: Table, workers: Mapping[str, int], guard: int) -> None:
        """Note the descendants of the living workers (id -> pid), and orphans that are nobody's."""
        self._owners = {key: w for key, w in self._owners.items() if _alive(table, key)}
        self._strangers = {key for key in self._strangers if _alive(table, key)}
        for worker, pid in workers.items():
            for one in descendants(table, [pid]):
                self._owners[one, table[one].started] = worker
        for pid in self._orphans(table, guard):
            if not self._owner(table, pid, workers):
                self._strangers.add((pid, table[pid].started))

    def of(self, table: Table, worker: str, pid: int, others: Mapping[str, int], guard: int) -> set[int]:
        """Return what a dead worker left behind.

        Args:
            table: all processes.
            worker: its id.
            pid: its pid, which is also its session's id.
            others: the living workers, id -> pid.
            guard: the process that orphans become children of.
        """
        mine = {p for p, row in table.items() if row.session == pid}
        mine |= {p for (p, started), w in self._owners.items() if w == worker and _alive(table, (p, started))}
        for orphan in self._orphans(table, guard):
            owner = self._owner(table, orphan, others)
            if owner == worker or (not owner and (orphan, table[orphan].started) not in self._strangers):
                mine.add(orphan)
        mine |= descendants(table, mine)
        spared = {p for w, p in others.items() if w != worker}
        spared |= descendants(table, spared)
        return {p for p in mine - spared if table[p].state != "Z"}

    def _orphans(self, table: Table, guard: int) -> list[int]:
        # the forkserver is a child of the guard too, in the guard's own session
        return (
            [p for p, row in table.items() if row.parent == guard and row.session != table[guard].session]
            if guard in table
            else []
        )

    def _owner(self, table: Table, pid: int, workers: Mapping[str, int]) -> str:
        row = table[pid]
        for worker, leader in workers.items():
            if row.session == leader:
                return worker
        return self._owners.get((pid, row.started), "") or self._marked(pid)


def _alive(table: Table, key: tuple[int, int]) -> bool:
    row = table.get(key[0])
    return row is not None and row.started == key[1]
