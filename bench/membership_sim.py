"""How soon a crash is a new world, in how many changes, and who is evicted falsely; beside memberlist. Simulated.

    python bench/membership_sim.py --nodes 1000 --crash 32 --loss 0.01 --json
    python bench/membership_sim.py                                              the bars

The membership service's reducer and the agents' gossip core are the real ones; clock, network (2 ms give or take 1 ms)
and broker are simulated, so the figures do not depend on this machine, and the same seed gives the same figures.
`memberlist` has the settings for a LAN; its world changes are those that one observer sees.

    first_s, last_s     from the crash to the world without the first, and without all of the dead
    false_evictions     members taken out though they were alive and well
    msgs_per_node_s     packets of gossip a node sends a second while nothing happens

Without arguments: the bars. Exit status 1 if one of them is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from reknit.services.membership.simulation.measure import Order, baseline, measure

WHOLE_CUT = 1.8
"""Seconds until all of the dead are out, in one change."""
FAST_CUT = 1.0
IDLE = 120.0
"""Seconds in which nobody may be evicted falsely."""


@dataclasses.dataclass(frozen=True)
class Bar:
    """One thing that must hold; `within`: seconds until all are out, None: nothing crashes and nothing may change."""

    name: str
    order: Order
    within: float | None

    def misses(self, found: dict[str, Any]) -> list[str]:
        wrong = [f"{found['false_evictions']} false evictions"] if found["false_evictions"] else []
        changes = 0 if self.within is None else 1
        if found["world_changes"] != changes:
            wrong.append(f"{found['world_changes']} world changes, not {changes}")
        if self.within is not None and (found["last_s"] is None or found["last_s"] > self.within):
            wrong.append(f"all out after {found['last_s']} s, not {self.within} s")
        return [f"{self.name}: {what}" for what in wrong]


def bars(*, quick: bool) -> list[Bar]:
    many, idle = (200, 30.0) if quick else (1000, IDLE)
    crashes = (1, many // 4) if quick else (1, 32, 250)
    found = [Bar(f"{many} nodes, {n} crash", Order(many, n, 0.01), WHOLE_CUT) for n in crashes]
    # the fast preset is for networks that lose nothing
    found += [Bar(f"{many} nodes, {n} crash, fast", Order(many, n, 0.0, preset="fast"), FAST_CUT) for n in crashes]
    found.append(Bar(f"{many} nodes, 5 % loss", Order(many, 0, 0.05, seconds=idle), None))
    found.append(Bar(f"{many} nodes, 10 % starved", Order(many, 0, 0.01, starved=0.1, seconds=idle), None))
    if not quick:
        found.append(Bar("10000 nodes, 256 crash", Order(10_000, 256, 0.01, seconds=2.5), WHOLE_CUT))
    return found


def figures(order: Order) -> dict[str, Any]:
    """Simulate both; returns reknit's figures with memberlist's beside them."""
    begin = time.monotonic()
    found = dataclasses.asdict(measure(order))
    took = time.monotonic() - begin
    found["memberlist"] = dataclasses.asdict(baseline(order))
    found["simulated_in_s"] = [round(took, 1), round(time.monotonic() - begin - took, 1)]
    return found


def lines(name: str, found: dict[str, Any]) -> Iterator[str]:
    for who, row in ((name, found), ("  memberlist", found["memberlist"])):
        first, last = (f"{row[key]:.2f}" if row[key] is not None else "-" for key in ("first_s", "last_s"))
        yield (
            f"{who:30} first {first:>6} s  last {last:>6} s  {row['world_changes']:3} changes  "
            f"{row['false_evictions']:3} false {row['msgs_per_node_s']:6} packets {row['bytes_per_node_s']:6} B/node/s"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--crash", type=int, default=1)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--starved", type=float, default=0.0)
    parser.add_argument("--preset", choices=("train", "fast"), default="train")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="looked at after the crash")
    parser.add_argument("--quick", action="store_true", help="the bars with 200 nodes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.nodes is not None:
        order = Order(args.nodes, args.crash, args.loss, args.seed, args.preset, args.starved, args.seconds)
        found = figures(order)
        print(json.dumps(found, indent=2) if args.json else "\n".join(lines(f"{args.nodes} nodes", found)))
        return 1 if found["false_evictions"] else 0
    document: dict[str, Any] = {}
    missed: list[str] = []
    for bar in bars(quick=args.quick):
        order = dataclasses.replace(bar.order, seed=args.seed)
        document[bar.name] = found = figures(order)
        missed += bar.misses(found)
        print("\n".join(lines(bar.name, found)), file=sys.stderr if args.json else sys.stdout, flush=True)
    document["missed"] = missed
    if args.json:
        print(json.dumps(document, indent=2))
    for what in missed:
        print(f"missed: {what}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
