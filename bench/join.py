"""What a join costs those who train: `python bench/join.py --json`.

Workers train a model of 25 M parameters with Adam; again and again one more is asked for (`job.scaled`), joins, and
leaves again. There must be a core for each of them, the joiner included, or what is measured is how they share the
cores; so by default one worker trains. Per join:

    gap_s           longest time between two committed steps of an old worker, from the request until a second after
                    the joiner is active, less the median step before the request
    calm_gap_s      the same over the seconds of calm right before the request: the noise
    active_after_s  from the joiner's fork (out of a warm forkserver) to the first step that it computed a part of

Each micro-batch waits a while, as it would for an accelerator: on a machine with fewer cores than workers a joiner
that boots takes the others' processor, which is no pause of theirs. `--elsewhere 0` leaves that out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
from figures import median_and_max
from job import NAME, Job, wait_for
from offspring import Offspring
from steplog import Done, Reader, active_at, excess_gap, gaps_over, newest, step_seconds, whole

from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.events import (
    JobScaled,
    RingLinked,
    ShardsPlanned,
    WorkerCaughtUp,
    WorkerExited,
    WorkerRegistered,
    WorkerStarted,
    WorldChanged,
)

BAR = 0.050
"""Seconds that the median gap may have beyond a normal step."""
WITHIN = 120.0
CALM = 4.0
STEPS = 8
"""Seconds, and steps of each worker, of calm before a join: a normal step, and the noise, are taken from them."""
AFTER = 1.0
"""Seconds after the joiner is active that still belong to its join."""


@dataclass(frozen=True)
class Join:
    """One join and what it cost; seconds.

    Attributes:
        stages: from the request until the joiner was forked, had registered, was in a world, all were linked in it, it
            had caught up, it was planned, and it was active.
        long_gaps: all steps of old workers that were longer than the bar allows: seconds from the request to their
            end, and seconds beyond a normal step.
    """

    gap_s: float
    calm_gap_s: float
    active_after_s: float
    step_s: float
    stages: dict[str, float]
    long_gaps: list[tuple[float, float]]
    load_1m: float
    others: float


def measured(joins: int, workers: int, elsewhere: float) -> dict[str, Any]:
    """Let so many workers join, one after the other, and return the document."""
    details: dict[str, Any] = {"workers": workers, "seconds_elsewhere": elsewhere, "machine": machine.describe()}
    if workers + 1 > machine.cores():
        print(
            f"{machine.cores()} cores for {workers + 1} workers: gaps hold what they take from one another",
            file=sys.stderr,
        )
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path, Offspring() as offspring:
        steps = Path(path) / "steps"
        steps.mkdir()
        args = [str(steps), "--model", "wide", "--adam", "--slots", "3", "--micro-batch", "2"]
        args += ["--elsewhere", str(elsewhere)]
        job = Job(offspring, Path(path), "steps_reknit.py", args, workers=workers)
        job.start()
        reader = Reader(steps)
        with job.listening() as (bus, log):
            for _ in range(joins):
                since = _until_calm(reader, offspring, workers)
                found.append(_join(bus, log.received, reader, offspring, workers=workers, since=since))
                print(found[-1], file=sys.stderr, flush=True)
                reader.forget(time.time() - 60.0)
                bus.publish(NAME, JobScaled(workers=workers))
                wait_for("the joiner's end", lambda: len(log.of(WorkerExited)) == len(found), WITHIN)
        job.stop()
    details["joins"] = [asdict(join) for join in found]
    details["load_1m_at_end"] = machine.load()
    return summary(found) | {"details": details}


def _join(
    bus: BusThread, log: Sequence[Received], reader: Reader, offspring: Offspring, *, workers: int, since: float
) -> Join:
    before = set(newest(reader.look())) & set(offspring.alive())
    generation = max(one.generation for one in reader.look() if one.pid in before)
    load, busy = machine.load(), machine.Busy.now(offspring)
    asked = time.time()
    bus.publish(NAME, JobScaled(workers=workers + 1))

    def look() -> float | None:
        done = reader.look()
        times = (active_at(done, pid, generation) for pid in {d.pid for d in done} - before)
        return next((at for at in times if at is not None and at > asked), None)

    active = wait_for("the joiner's first step", look, WITHIN, every=0.1)
    time.sleep(max(0.0, active + AFTER - time.time()))
    others = machine.Busy.now(offspring).others_since(busy)
    return join_of(
        reader.look(), log, before, since=since, asked=asked, active=active, load_1m=load, others=round(others, 2)
    )


def join_of(
    done: Sequence[Done],
    log: Sequence[Received],
    before: set[int],
    *,
    since: float,
    asked: float,
    active: float,
    load_1m: float = 0.0,
    others: float = 0.0,
) -> Join:
    """Return what a join cost.

    Args:
        done: the workers' notes.
        log: the job's events.
        before: processes that trained before it.
        since: wall time from which on all was calm.
        asked: wall time of the request.
        active: wall time at which the joiner had completed its first step.
        load_1m: for the record.
        others: for the record.

    Raises:
        ValueError: too few steps before it, or no joiner in the log.
    """
    normal = step_seconds(done, before, since, asked)
    stages = stages_of(log, asked)
    if normal is None or "forked" not in stages:
        raise ValueError("no step before the join" if normal is None else "no worker was started")
    stages["active"] = round(active - asked, 4)
    long = gaps_over(done, before, asked, active + AFTER, normal + BAR)
    return Join(
        gap_s=round(excess_gap(done, before, asked, active + AFTER, normal), 4),
        calm_gap_s=round(excess_gap(done, before, since, asked, normal), 4),
        active_after_s=round(stages["active"] - stages["forked"], 4),
        step_s=round(normal, 4),
        stages=stages,
        long_gaps=[(round(end - asked, 3), round(took - normal, 4)) for end, took in long],
        load_1m=load_1m,
        others=others,
    )


def stages_of(log: Sequence[Received], asked: float) -> dict[str, float]:
    """Return the seconds from the request to what the log says of the first worker started after it."""
    found: dict[str, float] = {}
    joiner, generation = "", 0
    for received in (r for r in log if r.time >= asked):
        event, seconds = received.event, round(received.time - asked, 4)
        match event:
            case WorkerStarted() if not joiner:
                joiner, found["forked"] = event.worker, seconds
            case WorkerRegistered(worker=worker) if worker == joiner:
                found.setdefault("registered", seconds)
            case WorldChanged() if joiner in event.added and not generation:
                generation, found["world"] = event.generation, seconds
            case RingLinked() if event.generation == generation > 0:
                found["linked"] = max(seconds, found.get("linked", 0.0))
            case WorkerCaughtUp(worker=worker) if worker == joiner:
                found.setdefault("caught_up", seconds)
            case ShardsPlanned() if any(r.worker == joiner and r.end > r.first for r in event.ranges):
                found.setdefault("planned", seconds)
            case _:
                pass
    return found


def summary(joins: Sequence[Join]) -> dict[str, Any]:
    """Return the figures."""
    return {
        "gap_s": median_and_max([join.gap_s for join in joins]),
        "active_after_s": {"median": median_and_max([join.active_after_s for join in joins])["median"]},
    }


def misses(found: dict[str, Any]) -> list[str]:
    """Say whether the bar is missed."""
    gap = found["gap_s"]["median"]
    return [f"median gap {gap} s, bar {BAR} s"] if gap is None or gap > BAR else []


def _until_calm(reader: Reader, offspring: Offspring, workers: int) -> float:
    """Wait until all are at work and have been for some seconds and steps; returns since when."""
    began = time.time()

    def at_work() -> bool:
        return whole(reader.look(), set(offspring.alive()), workers, began)

    wait_for(f"{workers} workers at work", at_work, WITHIN, every=0.2)
    since = time.time()

    def long_enough() -> bool:
        counts = Counter(one.pid for one in reader.look() if one.time > since)
        return time.time() - since >= CALM and len(counts) == workers and min(counts.values()) >= STEPS

    wait_for(f"{STEPS} steps", long_enough, WITHIN, every=0.2)
    return since


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=f"Exit status 1 if the median gap is longer than {BAR:g} s beyond a normal step.",
    )
    parser.add_argument("--joins", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1, help="that train before each join")
    parser.add_argument("--elsewhere", type=float, default=0.05, help="seconds that a micro-batch waits")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    found = measured(args.joins, args.workers, args.elsewhere)
    print(json.dumps(found, indent=2) if args.json else summary_line(found))
    for miss in misses(found):
        print(f"missed: {miss}", file=sys.stderr)
    return 1 if misses(found) else 0


def summary_line(found: dict[str, Any]) -> str:
    """The figures alone."""
    return json.dumps({name: found[name] for name in ("gap_s", "active_after_s")})


if __name__ == "__main__":
    sys.exit(main())
