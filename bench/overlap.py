"""Milliseconds of a step with and without overlap: `python bench/overlap.py --json`.

Real training of a causal language model whose 0.82 M parameters are spread evenly over its depth, one micro-batch a
worker; backward and communication are of similar length on links of 100 Mbit/s (each worker on a host of its own: a
network namespace whose only interface is shaped by `tc … tbf`). There overlap is forced off and on; on the loopback it
is off and automatic: where it cannot pay it must not cost. The two take turns in fresh processes (A B, B A, …), each
turn after a moment of quiet; a figure is the median over the rounds of the workers' median steps, a gain the median of
the rounds' ratios off / on.

    step_ms, gain     of two workers on slow links
    cells             the same for each setting, with all that was measured

Exit status 1 if a gain is below 1.1 on slow links, or below 0.98 on the loopback.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
from hosts import Hosts, NoNetworks, own_network
from job import Job, NotInTime, wait_for
from offspring import Offspring

PAYS = 1.1
COSTS = 0.98
MODEL = "language"
RATE = "100mbit"
START = 120.0
PATIENCE = 20.0
"""Seconds that a turn waits for a quiet machine."""


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        rate: of each worker's link, as `tc` spells it; empty: all on the loopback of one host.
        warm: seconds left out in each turn.
        seconds: measured in each turn.
    """

    rate: str
    workers: int
    warm: float
    seconds: float

    @property
    def modes(self) -> tuple[str, str]:
        """What is compared: off, and what must not be slower."""
        return ("off", "on") if self.rate else ("off", "auto")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the median step, the mean over the workers, and the share of the machine that others used."""

    step_ms: float
    others: float


def turn(setting: Setting, mode: str) -> Turn:
    """Train with overlap in this mode until every worker has measured.

    Raises:
        NotInTime: the workers do not come that far.
    """
    machine.wait_until_quiet(PATIENCE)
    number = setting.workers
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path, Offspring() as offspring:
        folder = Path(path)
        hosts = Hosts(offspring, folder) if setting.rate else None
        args = [str(folder), f"--model={MODEL}", f"--slots={number}"]
        args += [f"--warm={setting.warm}", f"--seconds={setting.seconds}"]
        job = Job(
            offspring,
            folder,
            "speed_reknit.py",
            args,
            workers=1 if hosts else number,
            nodes=number if hosts else 1,
            flags=["--overlap", mode],
            hosts=hosts,
        )

        def look(suffix: str) -> list[Path] | None:
            found = list(folder.glob(f"*.{suffix}"))
            return found if len(found) == number else None

        try:
            job.start()
            for host in job.host_of.values():
                shaped = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", setting.rate]
                subprocess.run([*host.prefix, *shaped, "burst", "64kb", "latency", "400ms"], check=True)
            wait_for("the warm-up", lambda: look("began"), START + setting.warm, every=0.1)
            before = machine.Busy.now(offspring)
            files = wait_for("the measurement", lambda: look("metered"), START + setting.seconds, every=0.1)
            others = machine.Busy.now(offspring).others_since(before)
        except NotInTime:
            print(job.printed(), file=sys.stderr)
            raise
        took = statistics.mean(json.loads(file.read_text())["step_ms_median"] for file in files)
        offspring.end()
        if hosts:
            hosts.close()
    return Turn(took, others)


def cell(setting: Setting, rounds: list[dict[str, Turn]]) -> dict[str, Any]:
    """Return one setting's figures, over the quiet rounds if there are two."""
    off, other = setting.modes
    quiet = [one for one in rounds if max(turn.others for turn in one.values()) < machine.QUIET]
    counted = quiet if len(quiet) >= 2 else rounds
    return {
        "network": setting.rate or "loopback",
        "workers": setting.workers,
        "step_ms": {mode: round(statistics.median(one[mode].step_ms for one in counted), 2) for mode in setting.modes},
        "gain": round(statistics.median(one[off].step_ms / one[other].step_ms for one in counted), 3),
        "quiet_rounds": len(quiet),
        "rounds": [{mode: [round(t.step_ms, 2), round(t.others, 2)] for mode, t in one.items()} for one in rounds],
    }


def measured(settings: list[Setting], count: int) -> dict[str, Any]:
    """Measure and return the document."""
    document: dict[str, Any] = {"model": MODEL, "machine": machine.describe(), "cells": []}
    for setting in settings:
        rounds = []
        for number in range(count):
            order = setting.modes if number % 2 == 0 else setting.modes[::-1]
            rounds.append({mode: turn(setting, mode) for mode in order})
        found = cell(setting, rounds)
        document["cells"].append(found)
        print(found, file=sys.stderr, flush=True)
    first = document["cells"][0]
    return {"step_ms": first["step_ms"], "gain": first["gain"], **document, "load_1m_after": machine.load()}


def misses(found: dict[str, Any]) -> list[str]:
    """Say which gains are below their bars."""
    said = []
    for one in found["cells"]:
        bar = COSTS if one["network"] == "loopback" else PAYS
        if one["gain"] < bar:
            said.append(f"gain {one['gain']} with {one['workers']} workers, {one['network']}: bar {bar}")
    return said


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=_numbers, default=[2, 4], help="on slow links, separated by commas")
    parser.add_argument("--loopback", type=_numbers, default=[2], help="on the loopback, separated by commas")
    parser.add_argument("--rate", default=RATE, help="of a slow link, as tc spells it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=float, default=6.0, help="seconds left out in each turn")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds measured in each turn")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    try:
        own_network()
    except NoNetworks as error:
        print(f"no hosts here: {error}", file=sys.stderr)
        return 2
    settings = [Setting(args.rate, number, args.warm, args.seconds) for number in args.workers]
    settings += [Setting("", number, args.warm, args.seconds) for number in args.loopback]
    found = measured(settings, args.rounds)
    print(json.dumps(found, indent=2) if args.json else {"step_ms": found["step_ms"], "gain": found["gain"]})
    missed = misses(found)
    for said in missed:
        print(said, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
