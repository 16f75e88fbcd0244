"""What a simulation says: lines for people, one JSON document for programs."""

from __future__ import annotations

import dataclasses
import json

from .measure import Baseline, Figures, Order
from .scenario import Outcome, Scenario


def document(order: Order, figures: Figures, baseline: Baseline | None) -> str:
    """Return figures as JSON: what was asked for, what came out, and memberlist's beside it."""
    found = {**dataclasses.asdict(figures), "asked": dataclasses.asdict(order)}
    if baseline is not None:
        found["memberlist"] = dataclasses.asdict(baseline)
    return json.dumps(found, indent=2) + "\n"


def text(order: Order, figures: Figures, baseline: Baseline | None) -> str:
    """Return figures as lines."""
    network = f"{order.loss:.0%} loss" + (f", {order.starved:.0%} of the nodes starved" if order.starved else "")
    lines = [f"{order.nodes} nodes, preset {order.preset}, {network}, seed {order.seed}"]
    if order.crash:
        lines.append(f"{order.crash} vanish without a word:")
        lines.append(f"  first out of the world  {_seconds(figures.first_s)}")
        lines.append(f"  all out of the world    {_seconds(figures.last_s)}")
        lines.append(f"  every worker knows      {_seconds(figures.known_s)}")
        lines.append(f"  world changes           {figures.world_changes}")
        lines.append(f"  busiest second          {figures.peak_msgs_per_node_s:g} packets a node")
    else:
        lines.append(f"nothing happens for {order.seconds:g} s: {figures.world_changes} world changes")
    lines.append(f"false evictions: {figures.false_evictions}")
    lines.append(
        f"gossip while nothing happens: {figures.msgs_per_node_s:g} packets, "
        f"{figures.bytes_per_node_s / 1000:.1f} kB a node and second"
    )
    lines.append(f"largest world: {figures.world_bytes / 1000:.0f} kB")
    if baseline is not None:
        lines.append(
            f"memberlist (LAN): first {_seconds(baseline.first_s)}, all {_seconds(baseline.last_s)}, "
            f"{baseline.world_changes} changes at an observer, {baseline.false_evictions} false deaths, "
            f"{baseline.msgs_per_node_s:g} packets, {baseline.bytes_per_node_s / 1000:.1f} kB a node and second"
        )
    return "\n".join([*lines, f"trace {figures.digest}", ""])


def played(scenario: Scenario, seed: int, outcome: Outcome, *, lines: bool) -> str:
    """Return how a scenario went; `lines`: and what happened in it."""
    said = [str(scenario), f"seed {seed}", *(outcome.lines if lines else ())]
    said += [f"violation: {violation}" for violation in outcome.violations]
    said.append(
        f"{outcome.worlds} worlds in {outcome.seconds:.0f} s; everybody back after {outcome.whole_after:.0f} s, views "
        f"equal after {outcome.equal_after:.0f} s; {len(outcome.violations)} violations; trace {outcome.digest}"
    )
    return "\n".join([*said, ""])


def _seconds(value: float | None) -> str:
    return "not in the time" if value is None else f"{value:.2f} s"
