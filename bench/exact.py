"""The same bits whatever happens: `python bench/exact.py --json`.

One small model (dropout, batch norm, Adam, an uneven last batch) is trained under different histories with the real
system: the written ones (other numbers of workers, kills, freezes, joins, scaling, a killed broker, all workers killed)
and some drawn from seeds. Every worker that reaches the end writes the sha256 of its model and optimizer state; all of
all histories must be equal. The job's own log must show that a history contained what it is named after, that every
member of the last world came to the end, and, by the ledger, that each sample was used once an epoch.

    python bench/exact.py --random 30 --seed 100       # seeds 100 to 129
    python bench/exact.py --only none --random 1 --seed 117    # seed 117 again: the same acts

Exit status 1 if hashes differ or something did not happen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import random_history
from histories import EPOCHS, HISTORIES, QUICK, History
from job import SCRIPTS, Job, NotInTime, wait_for
from offspring import Offspring
from stage import WITHIN, DidNotHappen, Stage

from reknit.core.events import JobFinished, StepsCommitted, WorldChanged
from reknit.core.ledger import verify

RANDOM = 3
"""Histories drawn from seeds, by default."""


@dataclass
class Outcome:
    """One history and what came of it."""

    name: str
    hashes: dict[str, str] = field(default_factory=dict)
    """Worker and pid -> sha256 of its final state."""
    happened: list[str] = field(default_factory=list)
    problem: str = ""
    tries: int = 1
    seed: int | None = None

    @property
    def distinct(self) -> set[str]:
        """The hashes without repetition."""
        return set(self.hashes.values())


def play(history: History, seed: int | None = None) -> Outcome:
    """Run one history; again if its event fell into the wrong moment."""
    outcome = Outcome(history.name)
    for attempt in range(history.tries):
        outcome = Outcome(history.name, tries=attempt + 1, seed=seed)
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
            outcome.hashes |= finals(folder)
        if not outcome.hashes:
            outcome.problem = outcome.problem or "no worker reached the end"
        if not outcome.problem:
            break
    return outcome


def finals(folder: Path) -> dict[str, str]:
    """Return the final hashes that were written, by worker and pid."""
    written = [json.loads(file.read_text()) for file in sorted(folder.glob("*.final"))]
    return {f"{final['worker']}/{final['pid']}": final["sha256"] for final in written}


def _alone(folder: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "exact_net.py"), str(folder), "--epochs", str(EPOCHS)]
    subprocess.run(command, check=True, timeout=WITHIN, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _together(history: History, offspring: Offspring, folder: Path, outcome: Outcome) -> None:
    home = folder / "home"
    home.mkdir()
    args = [str(folder), "--epochs", str(EPOCHS)]
    if history.plot is not None:
        args += ["--pace", str(history.pace)]
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
        code = job.wait(30.0)
        end = log.of(JobFinished)[-1]
        if code != 0 or end.outcome != "completed":
            raise DidNotHappen(f"the run ended with exit code {code}: {end.outcome}, {end.reason}")
        if history.proof is not None:
            history.proof(stage)
        running = [world for world in log.of(WorldChanged) if world.status == "running"]
        last = {f"{m.worker}/{m.pid}" for m in running[-1].members}
        if missing := last - set(finals(folder)):
            raise DidNotHappen(f"{', '.join(sorted(missing))} of the last world did not come to the end")
        ledger = verify(log.received)
        if not ledger.ok:
            raise DidNotHappen(f"the ledger says: {ledger.text()}")
        generations = len({e.generation for e in log.of(StepsCommitted)})
        outcome.happened.append(
            f"steps committed in {generations} worlds; {ledger.samples} samples, each once an epoch"
        )


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what is printed."""
    distinct = set().union(*(outcome.distinct for outcome in outcomes)) if outcomes else set()
    usual = max(distinct, key=lambda one: sum(one in outcome.distinct for outcome in outcomes), default="")
    return {
        "histories": len(outcomes),
        "distinct_hashes": len(distinct),
        "not_contained": [outcome.name for outcome in outcomes if outcome.problem],
        "failing_seeds": [o.seed for o in outcomes if o.seed is not None and (o.problem or o.distinct != {usual})],
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


def measured(written: Sequence[History], seeds: Sequence[int]) -> dict[str, Any]:
    """Run the histories and return the document."""
    chosen = [(history, None) for history in written] + [(random_history.history(seed), seed) for seed in seeds]
    outcomes = []
    for history, seed in chosen:
        outcome = play(history, seed)
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


def replay(seed: int) -> str:
    """The command that plays a seed again, against a calm run."""
    return f"python bench/exact.py --only alone --random 1 --seed {seed}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog="Exit status 1 if there is more than one hash, or a history did not contain what it is named after.",
    )
    parser.add_argument("--quick", action="store_true", help="four written histories only, and one drawn")
    parser.add_argument(
        "--only", metavar="TEXT", help="only written histories with this text in their name; none: none"
    )
    parser.add_argument("--random", type=int, metavar="N", help=f"histories drawn from seeds; {RANDOM} by default")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    written = [HISTORIES[i] for i in QUICK] if args.quick else list(HISTORIES)
    if args.only is not None:
        written = [history for history in HISTORIES if args.only in history.name]
    count = args.random if args.random is not None else 1 if args.quick else 0 if args.only is not None else RANDOM
    found = measured(written, range(args.seed, args.seed + count))
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print(f"{found['histories']} histories, {found['distinct_hashes']} distinct hashes")
    for miss in misses(found):
        print(f"missed: {miss}", file=sys.stderr)
    for seed in found["failing_seeds"]:
        print(f"seed {seed} failed; again: {replay(seed)}", file=sys.stderr)
    return 1 if misses(found) else 0


if __name__ == "__main__":
    sys.exit(main())
