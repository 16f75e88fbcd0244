"""How long a ring takes to be linked anew, by its size, and what that leaves behind: `python bench/rebuild.py --json`.

A tiny model is trained by W + 1 workers, forked from a warm forkserver; again and again one of them is killed (W are
left, the world is changed without a plan) and replaced (W + 1, a planned change), or with `--how scale` asked to leave
and asked for again (both planned). Per change and size of the new world, by the job's log and the workers' notes:

    linked_s         from `world.changed` to the last member's `ring.linked`
    first_commit_s   ... to the last old member's first step in the new world, the step in flight included
    link_s           of it: dialling, accepting, proving the secret, by the slowest member; all do it at once
    roll_call_s      of it: the token's two laps, 2 x size hops, by the slowest member
    hop_ms           roll_call_s / (2 x size)

Linking takes the same time whatever the size; the roll call takes two laps. So the bar for changes without a plan is a
line over the size: a constant, and a constant for each hop. In a planned change the step in flight is finished on the
old links first: there is no bar for it, but for what it leaves behind.

Also printed is how much open descriptors, threads and resident memory of the longest-lived worker, and of the agent,
the broker and the services, grow a change.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
import psutil
from figures import median_and_max
from job import NAME, Job, Log, wait_for
from offspring import Offspring
from residue import Residue, leaks
from steplog import Done, Reader

from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.events import JobScaled, Member, RingLinked, StepsCommitted, WorldChanged

WITHIN = 120.0
FIXED = 0.040
"""Seconds that linking may take at any size: evidence is in, the world is known; dial, accept, prove."""
A_HOP = 0.002
"""Seconds that one hop of the roll call may take, on a machine with fewer cores than workers."""
CALM = 0.5
"""Seconds between two changes."""


def bound(size: int) -> float:
    """Seconds within which a ring of so many members must be linked, in the median: two laps of the roll call."""
    return FIXED + 2 * size * A_HOP


@dataclass(frozen=True)
class Change:
    """One change of the world; seconds since `world.changed`, wall time of its publisher.

    Attributes:
        size: members of the new world.
        planned: by its own word.
        linked_s, first_commit_s, link_s, roll_call_s: see the module.
    """

    size: int
    planned: bool
    linked_s: float
    first_commit_s: float
    link_s: float
    roll_call_s: float


def change_of(world: Received, log: Sequence[Received], done: Sequence[Done], old: set[int]) -> Change | None:
    """Return what a change took; None while not all members are linked or not all old ones have committed.

    Args:
        world: its `world.changed`.
        log: the job's events.
        done: the workers' notes.
        old: processes that were members before.
    """
    event = world.event
    assert isinstance(event, WorldChanged)
    linked = {
        received.event.worker: received
        for received in log
        if isinstance(received.event, RingLinked) and received.event.generation == event.generation
    }
    firsts: dict[int, float] = {}
    for one in done:
        if one.generation == event.generation and one.pid in old:
            firsts[one.pid] = min(one.time, firsts.get(one.pid, one.time))
    staying = {m.pid for m in event.members} & old
    if {m.worker for m in event.members} - set(linked) or staying - set(firsts):
        return None
    reports = [r.event for r in linked.values() if isinstance(r.event, RingLinked)]
    return Change(
        size=len(event.members),
        planned=event.planned,
        linked_s=round(max(r.time for r in linked.values()) - world.time, 4),
        first_commit_s=round(max(firsts.values()) - world.time, 4),
        link_s=round(max(r.link_seconds for r in reports), 4),
        roll_call_s=round(max(r.roll_call_seconds for r in reports), 4),
    )


class Ring:
    """A job whose world is changed and watched."""

    def __init__(self, job: Job, bus: BusThread, log: Log, reader: Reader) -> None:
        self._job = job
        self._bus = bus
        self._log = log
        self._reader = reader
        self._hit: Counter[str] = Counter()
        self.superseded = 0
        """Changes that were followed by the next one before they were complete."""

    def world(self) -> Received | None:
        """The newest world."""
        return next((r for r in reversed(self._log.received) if isinstance(r.event, WorldChanged)), None)

    def members(self) -> tuple[Member, ...]:
        """Of the newest world."""
        world = self.world()
        return world.event.members if world and isinstance(world.event, WorldChanged) else ()

    def until_at_work(self, size: int) -> tuple[Member, ...]:
        """Wait until a world has so many members and all of them compute; returns them."""

        def look() -> bool:
            committed = [r.event for r in self._log.received[-50:] if isinstance(r.event, StepsCommitted)]
            owners = {r.worker for r in committed[-1].ranges if r.end > r.first} if committed else set()
            return len(self.members()) == size and owners == {m.worker for m in self.members()}

        wait_for(f"{size} workers at work", look, WITHIN, every=0.1)
        return self.members()

    def scale(self, size: int) -> list[Change]:
        """Ask for another number of workers; returns the changes until they are at work."""
        old = self.members()
        mark = len(self._log.received)
        self._bus.publish(NAME, JobScaled(workers=size))
        return self._follow(old, size, mark)

    def kill(self, keep: Member) -> list[Change]:
        """Kill a member other than `keep`, one that was killed least, and wait for its replacement."""
        old = self.members()
        least = min(self._hit[m.worker] for m in old if m.worker != keep.worker)
        victim = next(m for m in reversed(old) if m.worker != keep.worker and self._hit[m.worker] == least)
        self._hit[victim.worker] += 1
        mark = len(self._log.received)
        os.kill(victim.pid, signal.SIGKILL)
        wait_for("the world without it", lambda: all(m.pid != victim.pid for m in self.members()), WITHIN)
        return self._follow(tuple(m for m in old if m.pid != victim.pid), len(old), mark)

    def _follow(self, old: tuple[Member, ...], size: int, mark: int) -> list[Change]:
        self.until_at_work(size)
        time.sleep(CALM)
        events = self._log.received[mark:]
        done = self._reader.look()
        pids = {m.pid for m in old}
        worlds = [r for r in events if isinstance(r.event, WorldChanged) and r.event.status == "running"]
        found = [change_of(world, events, done, pids) for world in worlds]
        self.superseded += sum(one is None for one in found)
        self._reader.forget(time.time() - 10.0)
        return [one for one in found if one is not None]


def measured(size: int, rounds: int, how: str) -> dict[str, Any]:
    """Change a world of `size` + 1 so many times there and back; returns figures for both sizes, and the growth."""
    changes: list[Change] = []
    load = machine.load()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path, Offspring() as offspring:
        steps = Path(path) / "steps"
        steps.mkdir()
        flags = ["--max-restarts", "1000000"]
        job = Job(offspring, Path(path), "steps_tiny.py", [str(steps)], workers=size + 1, flags=flags)
        job.start()
        with job.listening() as (bus, log):
            ring = Ring(job, bus, log, Reader(steps))
            keep = ring.until_at_work(size + 1)[0]
            residues = {"worker": Residue()}
            for number in range(1, rounds + 1):
                if how == "scale":
                    changes += ring.scale(size) + ring.scale(size + 1)
                else:
                    changes += ring.kill(keep)
                if all(m.pid != keep.pid for m in ring.members()):
                    raise RuntimeError(f"round {number}: {keep.worker} was to live on and does not")
                residues["worker"].take(number, psutil.Process(keep.pid))
                for mark in job.processes():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        residues.setdefault(mark.what, Residue()).take(number, psutil.Process(mark.pid))
                if number % 20 == 0:
                    print(f"{number}: {residues['worker'].growth()}", file=sys.stderr, flush=True)
        job.stop()
    growth = {name: one.growth() for name, one in residues.items() if len(one.changes) > 1}
    return figures(changes, size) | {"growth": growth, "rounds": rounds, "superseded": ring.superseded, "load_1m": load}


def figures(changes: Sequence[Change], size: int) -> dict[str, Any]:
    """Return the figures of both kinds of changes, and each change."""
    found: dict[str, Any] = {}
    for kind, planned in (("unplanned", False), ("planned", True)):
        these = [c for c in changes if c.planned is planned]
        sizes = {c.size for c in these}
        found[kind] = {
            "changes": len(these),
            "sizes": sorted(sizes),
            **{
                name: median_and_max([getattr(c, name) for c in these])
                for name in ("linked_s", "first_commit_s", "link_s", "roll_call_s")
            },
            "hop_ms": median_and_max([1e3 * c.roll_call_s / (2 * c.size) for c in these], 3)["median"],
        }
    found["bound_s"] = round(bound(size), 4)
    found["each"] = [asdict(c) for c in changes]
    return found


def misses(found: dict[str, Any]) -> list[str]:
    """Say which bars are missed: the line over the size, and what is left behind."""
    said = []
    for size, one in found["workers"].items():
        took = one["unplanned"]["linked_s"]["median"]
        if found["how"] == "kill" and (took is None or took > one["bound_s"]):
            said.append(f"{size} workers: linked in {took} s in the median, bar {one['bound_s']} s")
        if "worker" in one["growth"]:
            said += [f"{size} workers: {leak}" for leak in leaks(one["growth"]["worker"], one["rounds"])]
    return said


def document(sizes: Sequence[int], rounds: int, how: str) -> dict[str, Any]:
    """Measure all sizes and return what is printed."""
    found: dict[str, Any] = {"workers": {}, "how": how, "machine": machine.describe()}
    for size in sizes:
        found["workers"][str(size)] = one = measured(size, rounds, how)
        brief = {kind: (one[kind]["linked_s"], one[kind]["first_commit_s"]) for kind in ("unplanned", "planned")}
        print(f"{size}: {brief}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=f"Exit status 1 if the median from world.changed to ring.linked without a plan is over "
        f"{FIXED:g} s + 2 x W x {A_HOP:g} s for a world of W, or the longest-lived worker gains descriptors, threads "
        "or more than 64 KiB a round.",
    )
    parser.add_argument("--workers", default="2,4,8,16", help="sizes W of the world after a death, by commas")
    parser.add_argument("--rounds", type=int, default=5, help="times that each world is changed there and back")
    parser.add_argument("--how", choices=("kill", "scale"), default="kill")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    found = document([int(size) for size in args.workers.split(",")], args.rounds, args.how)
    print(
        json.dumps(found, indent=2) if args.json else {size: one["unplanned"] for size, one in found["workers"].items()}
    )
    for miss in misses(found):
        print(f"missed: {miss}", file=sys.stderr)
    return 1 if misses(found) else 0


if __name__ == "__main__":
    sys.exit(main())
