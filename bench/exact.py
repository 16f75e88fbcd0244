"""The same bits whatever happens: `python bench/exact.py --json`.

One small model (dropout, batch norm, Adam, an uneven last batch) is trained under different histories with the real
system: other numbers of workers, kills, scaling, joins. Every worker that reaches the end writes the sha256 of its
model and optimizer state; all of all histories must be equal. The job's own log must show that a history contained what
it is named after. Exit status 1 if hashes differ or something did not happen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
from job import NAME, SCRIPTS, Job, Log, NotInTime, wait_for
from offspring import Offspring

from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.events import (
    CheckpointCommitted,
    CheckpointRestored,
    JobFinished,
    JobScaled,
    Member,
    RingRecovered,
    StepsCommitted,
    WorkerCaughtUp,
    WorkerExited,
    WorldChanged,
)
from reknit.core.ledger import verify

EPOCHS = 12
PACE = 0.02
"""Seconds longer a micro-batch while a history waits for its event."""
WITHIN = 120.0
TRIES = 3
"""A history whose event fell into the wrong moment is tried again."""


class DidNotHappen(Exception):
    """The history did not contain its event."""


@dataclass
class Outcome:
    """One history and what came of it."""

    name: str
    hashes: dict[str, str] = field(default_factory=dict)
    """Worker and pid -> sha256 of its final state."""
    happened: list[str] = field(default_factory=list)
    problem: str = ""
    tries: int = 1

    @property
    def distinct(self) -> set[str]:
        """The hashes without repetition."""
        return set(self.hashes.values())


@dataclass
class Stage:
    """A running job, as a history's plot sees it."""

    bus: BusThread
    log: Log
    happened: list[str]
    job: Job

    @property
    def world(self) -> WorldChanged:
        """The newest world."""
        return self.log.of(WorldChanged)[-1]

    def trains(self, workers: int) -> WorldChanged:
        """Wait until so many workers are in the world, none of them learning, and steps were committed by them."""

        def look() -> WorldChanged | None:
            world = self.log.of(WorldChanged)[-1] if self.log.of(WorldChanged) else None
            if world is None or world.status != "running" or len(world.members) != workers:
                return None
            committed = self.log.of(StepsCommitted)
            owners = {r.worker for r in committed[-1].ranges if r.end > r.first} if committed else set()
            return world if owners == {m.worker for m in world.members} else None

        return wait_for(f"{workers} workers at work", look, WITHIN)

    def kill(self, member: Member) -> None:
        """SIGKILL a worker."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)

    def kill_part(self, name: str) -> None:
        """SIGKILL the broker, a service or the agent."""
        mark = next(m for m in self.job.processes() if m.what == name)
        os.kill(mark.pid, signal.SIGKILL)
        wait_for(f"the end of {name}", lambda: not mark.alive, WITHIN)
        self.happened.append(f"{name} killed")

    def at_world(self, suits: Callable[[WorldChanged], bool], then: Callable[[WorldChanged], None]) -> threading.Event:
        """Do something the moment that a world that suits is announced, once; returns what says that it was done."""
        done = threading.Event()

        def hear(received: Received) -> None:
            if isinstance(received.event, WorldChanged) and not done.is_set() and suits(received.event):
                then(received.event)
                done.set()

        self.log.on_event(hear)
        return done

    def scale(self, workers: int) -> None:
        """Ask for another number of workers."""
        self.bus.publish(NAME, JobScaled(workers=workers))
        self.trains(workers)
        self.happened.append(f"scaled to {workers}")


Plot = Callable[[Stage], None]
Proof = Callable[[Stage], None]


@dataclass(frozen=True)
class History:
    """What happens in one run.

    Attributes:
        workers: at the beginning; 0: the script alone, without a launcher.
        plot: what is done in mid-run, None: nothing.
        proof: looks into the log after the end whether it really happened.
        die: `WORKER:STEP`, a worker that kills itself in the middle of that step.
        flags: more flags of `reknit run`.
    """

    name: str
    workers: int
    plot: Plot | None = None
    proof: Proof | None = None
    die: str = ""
    flags: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------------ plots


def _kill_twice(stage: Stage) -> None:
    """Kill a second worker the moment that the world without the first one is announced."""
    world = stage.trains(5)
    first, second = world.members[1], world.members[3]
    done = stage.at_world(lambda w: first.worker in w.removed, lambda _w: stage.kill(second))
    stage.kill(first)
    wait_for("the second kill", done.is_set, WITHIN)
    wait_for("the second world", lambda: _removed(stage, second), WITHIN)
    stage.trains(5)


def _killed_twice(stage: Stage) -> None:
    deaths = [w for w in stage.log.of(WorldChanged) if w.removed and w.status == "running"]
    if len(deaths) < 2:
        raise DidNotHappen("both deaths became one change of the world")
    first, second = deaths[0], deaths[1]
    recovered = stage.log.places(RingRecovered, lambda e: e.generation == first.generation)
    seen = stage.log.places(WorldChanged, lambda e: e.generation == second.generation)
    if recovered and recovered[0] < seen[0]:
        raise DidNotHappen("the first rebuild was complete before the second death was known")
    stage.happened.append(
        f"{', '.join(first.removed)} died (world {first.generation}); {', '.join(second.removed)} died before that "
        f"world had completed a step (world {second.generation})"
    )


def _join_and_kill(stage: Stage) -> None:
    """Kill an old worker the moment that the world with a joiner is announced."""
    before = stage.trains(3)
    victim = before.members[0]
    done = stage.at_world(lambda w: bool(w.added) and w.generation > before.generation, lambda _w: stage.kill(victim))
    stage.bus.publish(NAME, JobScaled(workers=4))
    wait_for("the kill", done.is_set, WITHIN)
    wait_for("the world without it", lambda: _removed(stage, victim), WITHIN)
    stage.trains(4)


def _joined_and_killed(stage: Stage) -> None:
    worlds = stage.log.of(WorldChanged)
    death = next((i for i, w in enumerate(worlds) if w.removed and w.status == "running"), None)
    if death is None or not worlds[death - 1].added:
        raise DidNotHappen("no death right after a join")
    joiner = worlds[death - 1].added[0]
    caught_up = stage.log.places(WorkerCaughtUp, lambda e: e.worker == joiner)
    died = stage.log.places(WorldChanged, lambda e: e.generation == worlds[death].generation)
    if caught_up and caught_up[0] < died[0]:
        raise DidNotHappen(f"{joiner} had caught up before the death was known")
    stage.happened.append(f"{', '.join(worlds[death].removed)} died while {joiner} was receiving state")


def _scale_about(stage: Stage) -> None:
    stage.trains(1)
    for workers in (3, 2, 4):
        stage.scale(workers)


def _scaled_about(stage: Stage) -> None:
    sizes = [len(w.members) for w in stage.log.of(WorldChanged) if w.status == "running"]
    wanted = iter(sizes)
    if not all(size in wanted for size in (1, 3, 2, 4)):
        raise DidNotHappen(f"the worlds had {sizes} members")
    stage.happened.append(f"members of the worlds: {sizes}")


def _kill_three(stage: Stage) -> None:
    """Kill one after the other, each as soon as all are at work again."""
    for turn in range(3):
        world = stage.trains(3)
        victim = world.members[turn]
        stage.kill(victim)
        wait_for("the world without it", lambda v=victim: _removed(stage, v), WITHIN)  # type: ignore[misc]
    stage.trains(3)


def _kill_all(stage: Stage) -> None:
    """Kill all at once after a checkpoint: nobody has the state any more."""
    world = stage.trains(3)
    wait_for("a checkpoint", lambda: stage.log.of(CheckpointCommitted), WITHIN)
    steps = stage.log.of(StepsCommitted)[-1].last
    wait_for("more steps", lambda: stage.log.of(StepsCommitted)[-1].last > steps + 5, WITHIN)
    for member in world.members:
        stage.kill(member)
    wait_for("the restored state", lambda: stage.log.of(CheckpointRestored)[-1:], WITHIN)
    stage.trains(3)


def _restored(stage: Stage) -> None:
    found = [e for e in stage.log.of(CheckpointRestored) if e.checkpoint]
    if not found:
        raise DidNotHappen("no checkpoint was restored")
    stage.happened.append(f"all killed; restored the checkpoint of {found[0].step} steps")


def _freeze(stage: Stage) -> None:
    """Stop a worker until the others go on without it, then let it run again."""
    world = stage.trains(3)
    frozen = world.members[1]
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        wait_for("the world without it", lambda: _removed(stage, frozen), WITHIN)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen.pid, signal.SIGCONT)
    stage.trains(3)


def _frozen(stage: Stage) -> None:
    world = next(w for w in stage.log.of(WorldChanged) if w.removed)
    again = next((w for w in stage.log.of(WorldChanged) if set(w.added) & set(world.removed)), None)
    if again is None:
        raise DidNotHappen("the frozen worker never came back")
    before = {m.pid for w in stage.log.of(WorldChanged) for m in w.members if w.generation < world.generation}
    same = {m.pid for m in again.members} <= before
    stage.happened.append(f"{world.removed[0]} frozen and left out; came back as {'itself' if same else 'another'}")


def _kill_broker(stage: Stage) -> None:
    """Kill the broker, and a worker while it is away; then the membership service."""
    world = stage.trains(3)
    stage.kill(world.members[2])
    stage.kill_part("broker")
    wait_for("the world without it", lambda: _removed(stage, world.members[2]), WITHIN)
    stage.trains(3)
    stage.kill_part("membership")
    stage.kill(stage.world.members[0])
    wait_for("one more death", lambda: len([w for w in stage.log.of(WorldChanged) if w.removed]) >= 2, WITHIN)
    stage.trains(3)


def _deaths(count: int) -> Proof:
    def proof(stage: Stage) -> None:
        worlds = [w for w in stage.log.of(WorldChanged) if w.removed and w.status == "running"]
        again = sum(e.computed_again for e in stage.log.of(RingRecovered))
        killed = [e for e in stage.log.of(WorkerExited) if e.signal == "SIGKILL"]
        if len(worlds) < count or len(killed) < count:
            raise DidNotHappen(f"{len(killed)} of {count} deaths, {len(worlds)} changes of the world")
        if not again:
            raise DidNotHappen("no death was in mid-step: no slot was computed again")
        stage.happened.append(f"{len(killed)} killed, {again} slots of steps in flight computed by others")

    return proof


def _removed(stage: Stage, member: Member) -> bool:
    return any(member.worker in w.removed for w in stage.log.of(WorldChanged))


HISTORIES = (
    History("alone, no launcher", 0),
    History("1 worker", 1),
    History("2 workers", 2),
    History("3 workers", 3),
    History("5 workers", 5),
    History("3 workers, one killed in mid-step", 3, proof=_deaths(1), die=f"n0-1:{EPOCHS * 21 // 2}"),
    History("3 workers, killed one after the other", 3, _kill_three, _deaths(3)),
    History("1 to 3 to 2 to 4 workers", 1, _scale_about, _scaled_about),
    History("5 workers, a kill during a rebuild", 5, _kill_twice, _killed_twice),
    History("3 workers, a join during a kill", 3, _join_and_kill, _joined_and_killed),
    History("3 workers, one frozen and back again", 3, _freeze, _frozen),
    History("3 workers, broker and membership killed with workers", 3, _kill_broker, _deaths(2)),
    History(
        "3 workers, all killed, from a checkpoint", 3, _kill_all, _restored, flags=("--checkpoint-every-steps", "20")
    ),
)
QUICK = (0, 1, 3, 5)


# -------------------------------------------------------------------------------------------------------------- run


def play(history: History) -> Outcome:
    """Run one history; again if its event fell into the wrong moment."""
    outcome = Outcome(history.name)
    for attempt in range(TRIES):
        outcome = Outcome(history.name, tries=attempt + 1)
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path, Offspring() as offspring:
            folder = Path(path)
            try:
                _alone(folder) if history.workers == 0 else _together(history, offspring, folder, outcome)
            except DidNotHappen as error:
                outcome.problem = str(error)
            except NotInTime as error:
                printed = folder / "home" / "printed.log"
                tail = printed.read_text(errors="replace")[-1500:] if printed.exists() else ""
                outcome.problem = f"{error}; printed at last: {tail}"
            outcome.hashes |= {
                f"{final['worker']}/{final['pid']}": final["sha256"]
                for file in sorted(folder.glob("*.final"))
                if (final := json.loads(file.read_text()))
            }
        if not outcome.hashes:
            outcome.problem = outcome.problem or "no worker reached the end"
        if not outcome.problem:
            break
    return outcome


def _alone(folder: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "exact_net.py"), str(folder), "--epochs", str(EPOCHS)]
    subprocess.run(command, check=True, timeout=WITHIN, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _together(history: History, offspring: Offspring, folder: Path, outcome: Outcome) -> None:
    home = folder / "home"
    home.mkdir()
    args = [str(folder), "--epochs", str(EPOCHS)]
    if history.plot is not None:
        args += ["--pace", str(PACE)]
    if history.die:
        args += ["--die", history.die]
    job = Job(offspring, home, "exact_net.py", args, workers=history.workers, flags=history.flags)
    job.start()
    with job.listening() as (bus, log):
        stage = Stage(bus, log, outcome.happened, job)
        if history.plot is not None:
            history.plot(stage)
        (folder / "go").touch()
        wait_for("the end of the run", lambda: log.of(JobFinished), WITHIN)
        time.sleep(0.2)
        code = job.wait(30.0)
        end = log.of(JobFinished)[-1]
        if code != 0 or end.outcome != "completed":
            raise DidNotHappen(f"the run ended with exit code {code}: {end.outcome}, {end.reason}")
        if history.proof is not None:
            history.proof(stage)
        ledger = verify(log.received)
        if not ledger.ok:
            raise DidNotHappen(f"the ledger says: {ledger.text()}")
        generations = len({e.generation for e in log.of(StepsCommitted)})
        outcome.happened.append(
            f"steps committed in {generations} worlds; {ledger.samples} samples, each once an epoch"
        )


def document(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return what is printed."""
    distinct = set().union(*(outcome.distinct for outcome in outcomes)) if outcomes else set()
    return {
        "histories": len(outcomes),
        "distinct_hashes": len(distinct),
        "not_contained": [outcome.name for outcome in outcomes if outcome.problem],
        "each": [
            {
                "history": outcome.name,
                "hash": " != ".join(sorted(outcome.distinct)),
                "workers": sorted(outcome.hashes),
                "happened": outcome.happened,
                "tries": outcome.tries,
                **({"problem": outcome.problem} if outcome.problem else {}),
            }
            for outcome in outcomes
        ],
        "machine": machine.describe(),
    }


def measured(quick: bool, only: str = "") -> dict[str, Any]:
    """Run the histories and return the document."""
    chosen = [HISTORIES[i] for i in QUICK] if quick else [h for h in HISTORIES if only in h.name]
    outcomes = []
    for history in chosen:
        outcome = play(history)
        said = f"{history.name}: {' != '.join(sorted(h[:16] for h in outcome.distinct))} {'; '.join(outcome.happened)}"
        print(said, f"PROBLEM: {outcome.problem}" if outcome.problem else "", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    return document(outcomes)


def misses(found: dict[str, Any]) -> list[str]:
    """Say what speaks against the promise."""
    said = [f"did not happen as meant: {name}" for name in found["not_contained"]]
    if found["distinct_hashes"] != 1:
        said.append(f"{found['distinct_hashes']} distinct hashes")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four histories only")
    parser.add_argument("--only", default="", metavar="TEXT", help="only histories with this text in their name")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    found = measured(args.quick, args.only)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print(f"{found['histories']} histories, {found['distinct_hashes']} distinct hashes")
    return 1 if misses(found) else 0


if __name__ == "__main__":
    sys.exit(main())
