"""Samples a second against torch DDP over gloo: `python bench/throughput.py --model all --workers 2,4 --json`.

Three models: an MLP of 1.0 M parameters, a conv net of 0.55 M that is heavy on compute, a transformer of 25 M. The same
model, dataset, micro-batches, global batch and one thread a worker; DDP as a static group of plain processes, its
gradients accumulated without sync where a worker has several micro-batches. The systems take turns (A B A B …), each
turn in fresh processes, warm-up left out. Whoever else uses the machine disturbs the two differently, so each turn
waits a while for quiet and notes what share of the machine others used. The ratio is the median over the quiet rounds,
or over all rounds if fewer than two were quiet.

    ratio_vs_ddp    number of workers -> samples a second by those of DDP, one micro-batch a worker; the lowest of all
                    models that were measured
    models          the same for each model, with all that was measured
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
from job import SCRIPTS, Job, NotInTime, wait_for
from offspring import Offspring

BAR = 1.0
"""Lowest ratio to DDP, one micro-batch a worker."""
SECONDS = {"mlp": 5.0, "conv": 5.0, "transformer": 20.0}
"""Measured in each turn: enough steps of each model."""
START = 120.0
PATIENCE = 20.0
"""Seconds that a turn waits for a quiet machine."""
Metered = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        slots: micro-batches a step; the global batch is the same for all.
        warm, seconds: left out, and measured, in each turn.
    """

    model: str
    workers: int
    slots: int
    warm: float
    seconds: float

    @property
    def args(self) -> list[str]:
        """For the training scripts."""
        return [
            f"--model={self.model}",
            f"--slots={self.slots}",
            f"--warm={self.warm}",
            f"--seconds={self.seconds}",
        ]


def turn(system: str, setting: Setting) -> Metered:
    """Let one system train until every worker has measured; returns the mean over the workers.

    Raises:
        NotInTime: the workers do not come that far.
    """
    machine.wait_until_quiet(PATIENCE)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path, Offspring() as offspring:
        folder = Path(path)
        log = folder / "printed.log"
        args = [str(folder), *setting.args]
        if system == "reknit":
            Job(offspring, folder, "speed_reknit.py", args, workers=setting.workers).start()
        else:
            command = [sys.executable, str(SCRIPTS / "speed_ddp.py"), *args, "--workers", str(setting.workers)]
            offspring.start(command, tag="ddp", log=log, env={"OMP_NUM_THREADS": "1"}, cwd=folder)

        def look(suffix: str) -> list[Path] | None:
            found = list(folder.glob(f"*.{suffix}"))
            return found if len(found) == setting.workers else None

        try:
            wait_for("the warm-up", lambda: look("began"), START + setting.warm, every=0.1)
            before = machine.Busy.now(offspring)
            files = wait_for("the measurement", lambda: look("metered"), START + setting.seconds, every=0.1)
            others = machine.Busy.now(offspring).others_since(before)
        except NotInTime:
            print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
            raise
        metered = [json.loads(file.read_text()) for file in files]
    return {name: statistics.mean(one[name] for one in metered) for name in metered[0]} | {"others": others}


def rounds(setting: Setting, count: int) -> Iterator[dict[str, Metered]]:
    """Let the systems take turns, the other one first every second round."""
    for number in range(count):
        order = ["reknit", "ddp"] if number % 2 == 0 else ["ddp", "reknit"]
        yield {system: turn(system, setting) for system in order}


def compare(measured: list[dict[str, Metered]]) -> dict[str, Any]:
    """Return ratios and each system's figures, medians over the quiet rounds."""
    quiet = [one for one in measured if max(turn["others"] for turn in one.values()) < machine.QUIET]
    counted = quiet if len(quiet) >= 2 else measured

    def ratio(name: str) -> float:
        return round(statistics.median(one["reknit"][name] / one["ddp"][name] for one in counted), 3)

    medians = {
        system: {name: round(statistics.median(one[system][name] for one in counted), 2) for name in counted[0][system]}
        for system in ("reknit", "ddp")
    }
    return {
        "ratio": ratio("samples_per_s"),
        "ratio_of_median_steps": round(1 / ratio("step_ms_median"), 3),
        "ratio_of_cpu": ratio("cpu_ms_a_step"),
        **medians,
        "quiet_rounds": len(quiet),
        "rounds": [
            {system: [round(turn["samples_per_s"], 1), round(turn["others"], 2)] for system, turn in one.items()}
            for one in measured
        ],
    }


def measured_model(
    workers: list[int], model: str, *, count: int, warm: float, seconds: float, twice: bool
) -> dict[str, Any]:
    """Measure one model and return its document."""
    found: dict[str, Any] = {"seconds_a_turn": seconds}
    for factor in (1, 2) if twice else (1,):
        name = "slots_are_workers" if factor == 1 else "slots_are_twice_workers"
        found[name] = {}
        for number in workers:
            setting = Setting(model, number, factor * number, warm, seconds)
            found[name][str(number)] = compared = compare(list(rounds(setting, count)))
            print(f"{model}, {number} workers, {setting.slots} slots: {compared}", file=sys.stderr, flush=True)
    found["ratio_vs_ddp"] = {number: one["ratio"] for number, one in found["slots_are_workers"].items()}
    return found


def measured(
    workers: list[int],
    models: list[str],
    *,
    count: int = 3,
    warm: float = 2.0,
    seconds: float | None = None,
    twice: bool = True,
) -> dict[str, Any]:
    """Measure and return the document."""
    here = machine.describe()
    found = {
        model: measured_model(workers, model, count=count, warm=warm, seconds=seconds or SECONDS[model], twice=twice)
        for model in models
    }
    return {"ratio_vs_ddp": lowest(found), "models": found, "machine": here, "load_1m_at_end": machine.load()}


def lowest(models: dict[str, Any]) -> dict[str, float]:
    """Return the lowest ratio over the models for each number of workers."""
    ratios = [one["ratio_vs_ddp"] for one in models.values()]
    return {number: min(ratio[number] for ratio in ratios) for number in ratios[0]} if ratios else {}


def misses(found: dict[str, Any]) -> list[str]:
    """Say which ratios are below the bar."""
    if not found["models"]:
        return ["nothing was measured"]
    return [
        f"{model}: {ratio} x DDP with {number} workers, bar {BAR}"
        for model, one in found["models"].items()
        for number, ratio in one["ratio_vs_ddp"].items()
        if not ratio >= BAR
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=f"Exit status 1 if a ratio with one micro-batch a worker is below {BAR:g}.",
    )
    parser.add_argument("--workers", default="2,4", help="numbers of workers, separated by commas")
    parser.add_argument("--model", choices=("all", *SECONDS), default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=float, default=2.0, help="seconds left out in each turn")
    parser.add_argument("--seconds", type=float, help="seconds measured in each turn; by default enough for the model")
    parser.add_argument("--once", action="store_true", help="one micro-batch a worker only")
    parser.add_argument("--quick", action="store_true", help="the MLP with two workers, one micro-batch each, only")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    models = [*SECONDS] if args.model == "all" else [args.model]
    numbers = [int(number) for number in args.workers.split(",")]
    if args.quick:
        models, numbers = ["mlp"], [2]
    twice = not (args.once or args.quick)
    found = measured(numbers, models, count=args.rounds, warm=args.warm, seconds=args.seconds, twice=twice)
    print(json.dumps(found, indent=2) if args.json else found["ratio_vs_ddp"])
    for miss in misses(found):
        print(f"missed: {miss}", file=sys.stderr)
    return 1 if misses(found) else 0


if __name__ == "__main__":
    sys.exit(main())
