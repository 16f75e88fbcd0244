"""`python -m reknit.services.membership.simulation`: size a cluster, or replay a scenario from its seed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from reknit.gossip.preset import PRESETS

from . import report
from .faults import share
from .measure import SECONDS, Order, baseline, measure
from .scenario import Scenario, draw, play

MOST = 20_000
"""Nodes that fit into the memory of a laptop."""


def main(argv: list[str] | None = None) -> int:
    """Run it; returns the exit status: 1 if an invariant did not hold or a healthy member was evicted."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.scenario is not None or args.draw:
        try:
            scenario = draw(args.seed, nodes=args.nodes) if args.draw else Scenario.parse(_read(args.scenario))
        except (OSError, ValueError) as error:
            parser.error(str(error))
        outcome = play(scenario, args.seed)
        sys.stdout.write(report.played(scenario, args.seed, outcome, lines=True))
        return 1 if outcome.violations else 0
    if not 2 <= args.nodes <= MOST:
        parser.error(f"--nodes is from 2 to {MOST}")
    if not 0 <= args.crash < args.nodes:
        parser.error("--crash is less than --nodes")
    order = Order(args.nodes, args.crash, args.loss, args.seed, args.preset, args.starved, args.seconds)
    figures = measure(order)
    beside = baseline(order) if args.baseline else None
    sys.stdout.write((report.document if args.json else report.text)(order, figures, beside))
    return 1 if figures.false_evictions else 0


def _read(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text()


def _share(word: str) -> float:
    try:
        value = share(word)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{word} is no share (0.05, or 5%)")
    return value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, as every verb does."""
        self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="reknit sim membership", description="Simulate membership: the real reducer and gossip, in virtual time."
    )
    parser.add_argument("--nodes", type=int, default=100, help="nodes, one worker each (default 100)")
    parser.add_argument("--crash", type=int, default=1, help="how many vanish without a word (default 1)")
    parser.add_argument("--loss", type=_share, default=0.0, help="share of packets lost, such as 5%% (default 0)")
    parser.add_argument("--starved", type=_share, default=0.0, help="share of nodes that read 0.5 to 2.5 s late")
    parser.add_argument("--seed", type=int, default=1, help="of all chance: the same seed, the same run (default 1)")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="train", help="figures of the gossip")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"seconds after the crash (default {SECONDS:g})")
    parser.add_argument("--baseline", action="store_true", help="simulate memberlist (LAN settings) too")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--scenario", metavar="FILE", help="play the faults in this file (`-`: standard input)")
    parser.add_argument("--draw", action="store_true", help="draw a scenario of --nodes from --seed and play it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
