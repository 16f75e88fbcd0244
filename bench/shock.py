"""One event that befalls a running system, and what came of it by the workers' own notes.

`befall` does it once: wait for a moment, let it happen, wait until the survivors have recovered, bring the system back
to full strength. What a system is, `System` says.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import machine
from job import NotInTime, wait_for
from offspring import Offspring
from steplog import Reader, excess_gap, newest, step_seconds, steps_lost, whole

MOMENT = (0.5, 1.5)
"""The event comes so many seconds after all were at work, at random."""
BEFORE = 2.0
"""Seconds before the event from which a normal step is taken."""
AFTER = 0.5
"""Seconds after the recovery that still belong to the window of its gap."""
WHOLE_WITHIN = 120.0
"""Seconds until all workers must train, at the beginning and after an event."""


@dataclass(frozen=True)
class Shock:
    """One event and what came of it; times in seconds.

    Attributes:
        victim: process, node or host.
        after: delay since all had been at work.
        step: newest step completed before.
        recover_s: from the event to the next committed step of the run, as the last survivor saw it; None: not in time.
        gap_s: longest time without a step of any survivor around the event, less a normal step.
        calm_gap_s: the same over a window of the same length right before, in which nothing happened: the noise.
        step_s: a normal step, the median before.
        steps_lost: steps completed before that were computed again.
        pids_kept: the survivors are still the same processes.
        whole_again_s: from the event until all workers were at work again.
        join_gap_s: longest time without a step of any survivor between recovery and then, less a normal step.
        load_1m: load of the machine right before.
        others: share of the machine that others used from the event until all were at work again.
        at: wall time.
        stages: seconds from the event to the first evidence, the new world, and its links, by the job's log.
    """

    victim: str
    after: float
    step: int
    recover_s: float | None
    gap_s: float | None
    calm_gap_s: float | None
    step_s: float | None
    steps_lost: int | None
    pids_kept: bool
    whole_again_s: float | None
    join_gap_s: float | None
    load_1m: float
    others: float
    at: float
    stages: dict[str, float] | None = None


class System(Protocol):
    """One system under measurement."""

    within: float
    """Seconds to wait for a recovery."""
    shocks_a_run: int
    """After so many events a fresh run begins; 0: never."""
    reader: Reader
    """The workers' notes."""

    def start(self) -> None:
        """Start all workers."""

    def victims(self) -> dict[str, set[int]]:
        """Name of what may be hit next -> pids of the workers that go with it."""

    def strike(self, victim: str) -> float:
        """Let it happen; returns the wall time right before."""

    def recovered_at(self, before: set[int], survivors: set[int], at: float) -> float | None:
        """When training had recovered; None: not yet."""

    def restore(self, victim: str) -> None:
        """Do what brings the system back to full strength, where it does not do so itself."""

    def stages(self, shocks: list[Shock]) -> list[Shock]:
        """Add what the system itself knows of the events of this run."""

    def stop(self) -> None:
        """End all."""


def befall(system: System, offspring: Offspring, workers: int, draw: random.Random, hit: Counter[str]) -> Shock:
    """Let one event happen at a random moment and return what came of it.

    Args:
        system: with all workers at work.
        offspring: its processes.
        workers: how many it has at full strength.
        draw: for the moment and the victim.
        hit: how often each victim was hit in this run; those hit least are next, lest a place's restart be held back.
    """
    after = draw.uniform(*MOMENT)
    time.sleep(after)
    victims = system.victims()
    least = min(hit[name] for name in victims)
    victim = draw.choice(sorted(name for name in victims if hit[name] == least))
    hit[victim] += 1
    before = {pid for pid in newest(system.reader.look()) if pid in set(offspring.alive())}
    survivors = before - victims[victim]
    step = max(one.step for one in system.reader.look())
    load, busy = machine.load(), machine.Busy.now(offspring)
    at = system.strike(victim)
    recovered = whole_at = None
    with contextlib.suppress(NotInTime):
        recovered = wait_for("recovery", lambda: system.recovered_at(before, survivors, at), system.within, every=0.05)
        time.sleep(max(0.0, recovered + AFTER - time.time()))
    done = system.reader.look()
    if recovered is not None:
        system.restore(victim)
        whole_at = until_whole(system, offspring, workers, at)
        done = system.reader.look()
    others = machine.Busy.now(offspring).others_since(busy)
    normal = step_seconds(done, survivors, at - BEFORE, at)

    def gap(since: float, until: float | None) -> float | None:
        return None if normal is None or until is None else rounded(excess_gap(done, survivors, since, until, normal))

    window = recovered + AFTER - at if recovered else 0.0
    shock = Shock(
        victim=victim,
        after=round(after, 3),
        step=step,
        recover_s=rounded(recovered - at) if recovered else None,
        gap_s=gap(at, at + window if recovered else None),
        calm_gap_s=gap(at - min(window, after), at if recovered else None),
        step_s=rounded(normal) if normal else None,
        steps_lost=steps_lost(done, survivors, at, whole_at) if whole_at else None,
        pids_kept=whole_at is not None and survivors <= set(offspring.alive()),
        whole_again_s=rounded(whole_at - at) if whole_at else None,
        join_gap_s=gap(recovered, whole_at) if recovered else None,
        load_1m=load,
        others=round(others, 2),
        at=at,
    )
    system.reader.forget(time.time() - 60.0)
    return shock


def until_whole(system: System, offspring: Offspring, workers: int, since: float) -> float:
    """Wait until all workers are at work in one world; returns when.

    Raises:
        NotInTime: they are not.
    """

    def look() -> float | None:
        done = system.reader.look()
        now = time.time()
        fresh = {one.pid for one in done if one.time > since}
        alive = set(offspring.alive()) if len(fresh) >= workers else set()
        return now if whole(done, alive, workers, max(since, now - 2.0)) else None

    return wait_for(f"{workers} workers at work", look, WHOLE_WITHIN, every=0.2)


def rounded(seconds: float) -> float:
    """Tenths of milliseconds are all that the notes tell."""
    return round(seconds, 4)
