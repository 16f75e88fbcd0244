"""What a change of the world leaves behind: `python bench/rebuilds.py --changes 200 --json`.

The world is changed again and again, by scaling to 2 and back to 3 or by killing workers; after each change the open
descriptors, threads and resident memory of the longest-lived worker are read, and those of the agent, the broker and
the services. Printed is how they grow per change (least squares, the first tenth left out as warm-up). Exit status 1 if
the worker gains descriptors or threads, or more than 64 KiB a change.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import psutil
from figures import slope
from job import NAME, Job, Log, wait_for
from offspring import Offspring

from reknit.core.bus_thread import BusThread
from reknit.core.events import JobScaled, Member, RingLinked, WorldChanged

WITHIN = 60.0
SLOW = 5.0
"""Seconds from which on a change is worth a remark."""
LIMITS = {
    "fds_per_change": (0.02, 3.0),
    "threads_per_change": (0.02, 3.0),
    "rss_kib_per_change": (64.0, 4096.0),
}
"""What counts as a leak: growth a change, and what it must come to over the run, lest a short run show its noise."""


@dataclass
class Samples:
    """What one process held after each change."""

    changes: list[float] = field(default_factory=list)
    fds: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)
    rss_kib: list[float] = field(default_factory=list)

    def take(self, change: int, process: psutil.Process) -> None:
        """Read the process now; one that is gone is left out."""
        try:
            fds, threads, rss = process.num_fds(), process.num_threads(), process.memory_info().rss
        except psutil.NoSuchProcess:
            return
        self.changes.append(change)
        self.fds.append(fds)
        self.threads.append(threads)
        self.rss_kib.append(rss / 1024)

    def growth(self) -> dict[str, float]:
        """Return the slopes a change, and the last values."""
        warm = len(self.changes) // 10
        x = self.changes[warm:]
        return {
            "fds_per_change": round(slope(x, self.fds[warm:]), 4),
            "threads_per_change": round(slope(x, self.threads[warm:]), 4),
            "rss_kib_per_change": round(slope(x, self.rss_kib[warm:]), 2),
            "fds": self.fds[-1],
            "threads": self.threads[-1],
            "rss_mib": round(self.rss_kib[-1] / 1024, 1),
        }


def linked(log: Log, workers: int, after: int) -> WorldChanged | None:
    """The newest world, if it is newer than a generation, has so many members, and all of them are linked in it."""
    worlds = log.of(WorldChanged)
    if not worlds or worlds[-1].generation <= after or len(worlds[-1].members) != workers:
        return None
    here = {e.worker for e in log.of(RingLinked)[-64:] if e.generation == worlds[-1].generation}
    return worlds[-1] if here >= {m.worker for m in worlds[-1].members} else None


def change(how: str, bus: BusThread, log: Log, world: WorldChanged, keep: Member) -> WorldChanged:
    """Change the world once and return the next one, linked."""
    size = len(world.members)
    if how == "scale":
        wanted = 2 if size == 3 else 3
        bus.publish(NAME, JobScaled(workers=wanted))
        return wait_for("the scaled world", lambda: linked(log, wanted, world.generation), WITHIN)
    if size == 3:
        victim = next(m for m in reversed(world.members) if m.worker != keep.worker)
        psutil.Process(victim.pid).kill()
        return wait_for("the world without it", lambda: linked(log, 2, world.generation), WITHIN)
    return wait_for("the replacement", lambda: linked(log, 3, world.generation), WITHIN)


def others(job: Job) -> dict[str, psutil.Process]:
    """Launcher, agent, broker and services of the job."""
    return {mark.what: psutil.Process(mark.pid) for mark in job.processes() if mark.alive}


def measured(changes: int, how: str) -> dict[str, Any]:
    """Change the world so many times and return the document."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path, Offspring() as offspring:
        job = Job(offspring, Path(path), "steps_only.py", workers=3, flags=["--max-restarts", "1000000"])
        job.start()
        with job.listening() as (bus, log):
            world = wait_for("the first world", lambda: linked(log, 3, 0), WITHIN)
            keep = world.members[0]
            samples = {"worker": Samples()} | {name: Samples() for name in others(job)}
            took = []
            for number in range(1, changes + 1):
                began = time.monotonic()
                world = change(how, bus, log, world, keep)
                took.append(time.monotonic() - began)
                if took[-1] > SLOW:
                    print(f"{number}: took {took[-1]:.1f} s: {world.reason}", file=sys.stderr, flush=True)
                if all(m.pid != keep.pid for m in world.members):
                    raise RuntimeError(f"change {number}: {keep.worker} was to live on and does not: {world.reason}")
                samples["worker"].take(number, psutil.Process(keep.pid))
                for name, process in others(job).items():
                    samples.setdefault(name, Samples()).take(number, process)
                if number % 20 == 0:
                    print(f"{number}: {samples['worker'].growth()}", file=sys.stderr, flush=True)
        job.stop()
    growth = {name: one.growth() for name, one in samples.items() if len(one.changes) > 1}
    return {
        "changes": changes,
        "how": how,
        "worker": growth.pop("worker"),
        "others": growth,
        "seconds_a_change": {"mean": round(sum(took) / len(took), 3), "max": round(max(took), 3)},
        "machine": machine.describe(),
    }


def leaks(found: dict[str, Any]) -> list[str]:
    """Say what the worker gains with each change."""
    worker, changes = found["worker"], found["changes"]
    return [
        f"{name} {worker[name]}, limit {limit}"
        for name, (limit, in_all) in LIMITS.items()
        if worker[name] > limit and worker[name] * changes > in_all
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--how", choices=("scale", "kill"), default="scale")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    found = measured(args.changes, args.how)
    print(json.dumps(found, indent=2) if args.json else found)
    for leak in leaks(found):
        print(f"leak: {leak}", file=sys.stderr)
    return 1 if leaks(found) else 0


if __name__ == "__main__":
    sys.exit(main())
