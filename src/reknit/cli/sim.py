"""`reknit sim`: how a cluster would behave, in virtual time on this machine."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from reknit.core import setting_kinds as kinds

from . import options
from .app import app, verb

sim = typer.Typer(help="Simulate a cluster in virtual time, to size it.", no_args_is_help=True)
app.add_typer(sim, name="sim")


def _whole(least: int) -> Any:
    return options.value(kinds.whole(least))


@sim.command("membership")
@verb
def membership(
    *,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", parser=_whole(2), help="Nodes, one worker each.")] = 100,
    crash: Annotated[
        int, typer.Option("--crash", metavar="N", parser=_whole(0), help="How many vanish without a word.")
    ] = 1,
    loss: Annotated[str, typer.Option("--loss", metavar="SHARE", help="Share of packets lost, such as 5%.")] = "0%",
    starved: Annotated[
        str, typer.Option("--starved", metavar="SHARE", help="Share of nodes that read 0.5 to 2.5 s late.")
    ] = "0%",
    preset: Annotated[str, typer.Option("--preset", metavar="train|fast", help="Figures of the gossip.")] = "train",
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", parser=_whole(0), help="Of all chance: the same seed, the same run.")
    ] = 1,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="SECONDS",
            parser=options.value(kinds.number(0, above=True)),
            help="Look so long after the crash.",
        ),
    ] = 6.0,
    baseline: Annotated[bool, typer.Option("--baseline", help="Simulate memberlist (LAN settings) too.")] = False,
    scenario: Annotated[
        str | None, typer.Option("--scenario", metavar="FILE", help="Play the faults in this file (-: standard input).")
    ] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Draw a scenario of --nodes from --seed and play it.")] = False,
    json: options.JsonFlag = False,
) -> int:
    """Say how soon a crash is a new world, how many changes it takes, who is evicted falsely, and what gossip costs.

    The membership service's own decisions and the agents' own gossip run over a simulated network and broker: latency
    2 ms give or take 1 ms. The same seed gives the same run, to the letter.
    """
    words = ["--nodes", str(nodes), "--crash", str(crash), "--loss", loss, "--starved", starved, "--preset", preset]
    words += ["--seed", str(seed), "--seconds", str(seconds)]
    words += [flag for flag, on in (("--baseline", baseline), ("--draw", draw), ("--json", json)) if on]
    words += ["--scenario", scenario] if scenario is not None else []
    os.execv(sys.executable, [sys.executable, "-P", "-m", "reknit.services.membership.simulation", *words])  # noqa: S606
