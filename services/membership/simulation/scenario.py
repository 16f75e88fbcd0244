"""A scenario: a cluster and its faults, written down or drawn from a seed; and `play`, which lets it happen.

A scenario's text is its lines: `nodes 60`, `hubs 2`, `preset fast`, `storm`, then one line a fault. `Scenario.parse`
reads what `str` writes.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from reknit.gossip.preset import PRESETS
from reknit.services.membership.decide import decide

from .chance import Chance
from .cluster import STORM, Cluster
from .faults import Fault, inflict, parse
from .hub import Reducer
from .invariants import Invariants, Violation

BEGIN = 3.0
"""Seconds until the first fault, at least; in a storm that is after it."""
RETURN = 20.0
"""Seconds after the last fault until everybody is back in the world, at most."""
CONVERGE = 60.0
"""Seconds after the last fault until all views are equal, at most: the longest suspicion, and anti-entropy."""
_LOOK = 1.0
_CALM = 5.0
"""Seconds that are looked at after that: nothing more may happen."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated.

    Attributes:
        nodes: how many, one worker each.
        hubs: membership services.
        preset: of the gossip.
        storm: all nodes join within seconds, instead of being there.
        faults: in order of their moments.
    """

    nodes: int
    hubs: int = 1
    preset: str = "train"
    storm: bool = False
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        """The lines."""
        lines = [f"nodes {self.nodes}", f"hubs {self.hubs}", f"preset {self.preset}"]
        return "\n".join([*lines, *(["storm"] if self.storm else []), *map(str, self.faults)])

    @staticmethod
    def parse(text: str) -> Scenario:
        """Read lines; empty ones and those that begin with `#` are passed over.

        Raises:
            ValueError: a line makes no sense.
        """
        found: dict[str, str] = {}
        faults = []
        for line in filter(None, (raw.partition("#")[0].strip() for raw in text.splitlines())):
            word, _, rest = line.partition(" ")
            if word == "at":
                faults.append(parse(line))
            elif word in ("nodes", "hubs", "preset", "storm"):
                found[word] = rest
            else:
                raise ValueError(f"a scenario has no line {line!r}")
        return Scenario(
            nodes=int(found.get("nodes", "50")),
            hubs=int(found.get("hubs", "1")),
            preset=found.get("preset", "train"),
            storm="storm" in found,
            faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How it went.

    Attributes:
        violations: invariants that did not hold.
        digest: of all that happened; equal for equal seeds.
        worlds: how many there were.
        lines: what is worth reading.
        whole_after: seconds from the last fault until everybody was back in the world.
        equal_after: seconds from the last fault until all views were equal.
        seconds: simulated.
        largest: bytes of the largest world.
    """

    violations: tuple[Violation, ...]
    digest: str
    worlds: int
    lines: tuple[str, ...]
    whole_after: float
    equal_after: float
    seconds: float
    largest: int


def play(scenario: Scenario, seed: int, *, reducer: Reducer = decide) -> Outcome:
    """Let a scenario happen, and look at it until all has been quiet for long enough."""
    cluster = Cluster(
        nodes=scenario.nodes,
        seed=seed,
        hubs=scenario.hubs,
        preset=PRESETS[scenario.preset],
        reducer=reducer,
        tells_rtt=True,
    )
    invariants = Invariants(cluster)
    cluster.begin(storm=scenario.storm)
    for fault in scenario.faults:
        cluster.clock.at(fault.at, inflict, cluster, fault)
    over = max((fault.ends for fault in scenario.faults), default=STORM if scenario.storm else 0.0)
    over = max([over, *(_rolled(fault) for fault in scenario.faults)])
    cluster.run(over)
    whole = _wait(cluster, invariants.world_is_whole, RETURN)
    equal = whole + _wait(cluster, invariants.views_are_equal, CONVERGE - whole)
    cluster.run(_CALM)
    invariants.world_is_whole(final=True)
    invariants.order()
    return Outcome(
        tuple(invariants.violations),
        cluster.trace.digest,
        len(cluster.worlds),
        tuple(cluster.trace.lines),
        whole,
        equal,
        cluster.clock.now,
        invariants.largest,
    )


def _wait(cluster: Cluster, holds: Callable[..., bool], most: float) -> float:
    """Let time pass until it holds; what does not hold in time is a violation. Returns the seconds it took."""
    begin = cluster.clock.now
    while not holds() and cluster.clock.now - begin < most:
        cluster.run(_LOOK)
    holds(final=True)
    return cluster.clock.now - begin


def _rolled(fault: Fault) -> float:
    """When a rolling restart is over."""
    return fault.ends + (int(fault.words[0]) * float(fault.words[1]) if fault.verb == "rolling" else 0.0)


# -------------------------------------------------------------------------------------------------------------- drawn


def draw(seed: int, *, nodes: int = 50, long: bool = False) -> Scenario:
    """Draw a scenario: a network that is good or bad for all, and two to four faults that may overlap.

    Args:
        seed: of the scenario; `play` takes the same.
        nodes: how many.
        long: outages of the broker may last a minute.
    """
    chance = Chance(seed).stream("scenario")
    storm = chance.random() < 0.15
    begin = STORM + 5.0 if storm else BEGIN
    faults: list[Fault] = []
    loss = chance.choice(("0%", "0%", "1%", "3%", "5%"))
    if loss != "0%":
        faults.append(Fault(0.0, "loss", (loss,)))
    if chance.random() < 0.3:
        faults += [Fault(0.0, "duplicate", ("2%",)), Fault(0.0, "reorder", ("5%",))]
    starved = chance.choice(("1%", "5%", "10%")) if chance.random() < 0.3 else ""
    at = begin
    for _ in range(chance.randint(2, 4)):
        fault = chance.choice(_DRAWN)(chance, round(at, 2))
        faults.append(fault)
        if chance.random() < 0.25:
            seconds = 60.0 if long and chance.random() < 0.3 else 5.0
            faults.append(Fault(round(at + 2 * chance.random() - 1, 2), "outage", (), seconds))
        at += chance.choice((0.0, 0.5, 2.0, 8.0, _rolled(fault) - at))
    hubs = chance.choice((1, 2))
    if chance.random() < 0.4:
        verb = chance.choice(("hub-kill", "hub-stop"))
        faults.append(Fault(round(begin + 1.5 * chance.random(), 2), verb, ("0",), round(1 + 3 * chance.random(), 2)))
    last = max(_rolled(fault) for fault in faults)
    if starved:  # who reads seconds late for ever is suspected and refutes for ever: views differ by that much
        faults.append(Fault(0.0, "starve", (starved,), round(last, 2)))
    if any(fault.verb == "crash" for fault in faults) and chance.random() < 0.5:
        faults.append(Fault(round(last + 2.0, 2), "boot"))
    return Scenario(nodes, hubs, "train", storm, tuple(sorted(faults, key=lambda fault: fault.at)))


Drawer = Callable[[random.Random, float], Fault]


def _how(chance: random.Random) -> str:
    return chance.choice(("power", "killed"))


def _count(chance: random.Random) -> str:
    return chance.choice(("1", "1", "2", "5%", "10%"))


_DRAWN: tuple[Drawer, ...] = (
    lambda c, at: Fault(at, "crash", (c.choice(("1", "3", "10%", "25%")), _how(c))),
    lambda c, at: Fault(at, "restart", (_count(c), _how(c)), round(0.5 + 4 * c.random(), 2)),
    lambda c, at: Fault(at, "rolling", (str(c.randint(2, 5)), "1.5"), 1.0),
    lambda c, at: Fault(at, "worker-kill", (_count(c),)),
    lambda c, at: Fault(at, "freeze", (_count(c),), round(1 + 4 * c.random(), 2)),
    lambda c, at: Fault(at, "wall", (_count(c), c.choice(("in", "out"))), round(2 + 10 * c.random(), 2)),
    lambda c, at: Fault(at, "flip", ("1", c.choice(("in", "out")), "4"), 16.0),
    lambda c, at: Fault(at, "lossy", (_count(c), "80%"), 12.0),
    lambda c, at: Fault(at, "mute", (_count(c),), 8.0),
    lambda c, at: Fault(at, "part", (c.choice(("10%", "30%", "50%")),), round(2 + 12 * c.random(), 2)),
    lambda c, at: Fault(at, "jump", (_count(c), c.choice(("3600", "-3600", "-5")))),
)
