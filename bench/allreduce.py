"""Milliseconds of an all-reduce, the ring against gloo: `python bench/allreduce.py --json`.

Real processes over loopback, two slots a worker. The ring sums all slots in their fixed order with the classes that the
workers use; gloo gets the local sum of the two. Both systems' processes live side by side and take turns (A B, B A, …),
each turn after a moment of quiet and with what others used of the machine meanwhile. A turn's figure is the slowest
worker's mean; a cell's is the median over its rounds (the quiet ones, if there are two), and its ratio gloo / ring the
median of the rounds' ratios. Exit status 1 if a ratio is below 0.9.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

import machine
from job import SCRIPTS
from offspring import Offspring

LIMIT = 0.9
FLOATS = (1_000, 250_000, 4_000_000, 25_000_000)
SYSTEMS = ("ring", "gloo")
PATIENCE = 10.0
"""Seconds that a round waits for a quiet machine."""
ANSWER = 120.0
"""Seconds that a peer may take for a turn."""


class NoAnswer(Exception):
    """A peer has died or hangs."""


class Group:
    """All processes of one system, linked."""

    def __init__(self, system: str, size: int, folder: Path, offspring: Offspring, stack: ExitStack) -> None:
        self._log = folder / f"{system}.log"
        self._peers: list[Connection] = []
        doors = [stack.enter_context(Listener(str(folder / f"{system}{rank}"))) for rank in range(size)]
        for rank, door in enumerate(doors):
            offspring.start(
                [sys.executable, str(SCRIPTS / "reduce_peer.py"), system, str(folder), str(rank), str(size)],
                tag=system,
                log=self._log,
                env={"OMP_NUM_THREADS": "1"},
                cwd=folder,
            )
            # a peer that dies before it has called would leave us here: it has nothing to do before that but to import
            self._peers.append(stack.enter_context(door.accept()))
        if system == "ring":
            addresses = self._answers()
            self._tell(addresses)
        self._answers()

    def turn(self, floats: int, times: int) -> float:
        """Let all reduce, and check the last sum; returns the milliseconds of one reduction, of the slowest."""
        self._tell((floats, times))
        ms = 1e3 * max(self._answers()) / times
        self._tell(())
        self._answers()  # checked only now: who is done first must not disturb the others
        return ms

    def end(self) -> None:
        """Let all end."""
        self._tell(None)

    def _tell(self, message: Any) -> None:
        for peer in self._peers:
            peer.send(message)

    def _answers(self) -> list[Any]:
        found: dict[int, Any] = {}
        while len(found) < len(self._peers):
            open_ones = [peer for peer in self._peers if id(peer) not in found]
            ready = wait(open_ones, ANSWER)
            try:
                if not ready:
                    raise EOFError
                for peer in ready:
                    assert isinstance(peer, Connection)
                    found[id(peer)] = peer.recv()
            except (EOFError, OSError):
                raise NoAnswer(self._log.read_text(errors="replace")[-2000:]) from None
        return [found[id(peer)] for peer in self._peers]


@dataclass(frozen=True, slots=True)
class Turn:
    """One system's turn: milliseconds a reduction, and the share of the machine that others used."""

    ms: float
    others: float


Round = dict[str, Turn]


def rounds(groups: dict[str, Group], floats: int, count: int, seconds: float, offspring: Offspring) -> Iterator[Round]:
    """Let the systems take turns, the other one first every second round."""
    times = {}
    for system, group in groups.items():
        group.turn(floats, 2)  # fresh buffers
        times[system] = max(2, round(1e3 * seconds / group.turn(floats, 3)))
    for number in range(count):
        machine.wait_until_quiet(PATIENCE)
        found = {}
        for system in SYSTEMS if number % 2 == 0 else SYSTEMS[::-1]:
            before = machine.Busy.now(offspring)
            ms = groups[system].turn(floats, times[system])
            found[system] = Turn(ms, machine.Busy.now(offspring).others_since(before))
        yield found


def cell(workers: int, floats: int, measured: list[Round]) -> dict[str, Any]:
    """Return one cell's figures."""
    quiet = [one for one in measured if max(turn.others for turn in one.values()) < machine.QUIET]
    counted = quiet if len(quiet) >= 2 else measured
    found: dict[str, Any] = {"workers": workers, "floats": floats}
    for system in SYSTEMS:
        took = [one[system].ms for one in counted]
        found[f"{system}_ms"] = round(statistics.median(took), 3)
        found[f"{system}_ms_min"] = round(min(took), 3)
    found["ratio"] = round(statistics.median(one["gloo"].ms / one["ring"].ms for one in counted), 3)
    found["quiet_rounds"] = len(quiet)
    found["rounds"] = len(measured)
    return found


def measured(workers: list[int], floats: list[int], *, count: int = 5, seconds: float = 0.5) -> dict[str, Any]:
    """Measure and return the document."""
    document: dict[str, Any] = {"machine": machine.describe(), "cells": []}
    for size in workers:
        with (
            tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path,
            Offspring() as offspring,
            ExitStack() as stack,
        ):
            groups = {system: Group(system, size, Path(path), offspring, stack) for system in SYSTEMS}
            for number in floats:
                found = cell(size, number, list(rounds(groups, number, count, seconds, offspring)))
                document["cells"].append(found)
                print(found, file=sys.stderr, flush=True)
            for group in groups.values():
                group.end()
    document["worst"] = min(document["cells"], key=lambda one: one["ratio"], default=None)
    document["load_1m_after"] = machine.load()
    return document


def misses(found: dict[str, Any]) -> list[str]:
    """Say which cells are below the limit."""
    return [
        f"{one['ratio']} x gloo with {one['workers']} workers and {one['floats']} floats, limit {LIMIT}"
        for one in found["cells"]
        if one["ratio"] < LIMIT
    ]


def _numbers(text: str) -> list[int]:
    return [int(float(number)) for number in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=_numbers, default=[2, 4, 8], help="numbers of workers, separated by commas")
    parser.add_argument("--floats", type=_numbers, default=list(FLOATS), help="sizes, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="about so long takes a turn")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    found = measured(args.workers, args.floats, count=args.rounds, seconds=args.seconds)
    print(json.dumps(found, indent=2) if args.json else found["worst"])
    missed = misses(found)
    for said in missed:
        print(said, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
