"""Random histories: whatever happens in whatever order, these things hold."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.upheaval import NAMES, Upheaval

LAGS = [0.0, 0.003, 0.3]
PAUSES = [0.0, 0.001, 0.01, 0.05, 0.12, 0.3, 0.4, 1.0, 3.0]
KINDS = [
    "register",
    "register",
    "register",
    "register",
    "kill",
    "kill",
    "dies",
    "dies",
    "kill-silently",
    "kill-node",
    "freeze",
    "thaw",
    "thaw",
    "break",
    "break-round",
    "disconnect",
    "leave",
    "idle",
    "drain",
    "node-leaves",
    "outage",
    "unheard",
    "service-restarts",
    "service-forgets",
    "scale",
    "commit",
    "stale-news",
]
Action = tuple[str, int, float]
ACTIONS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, len(NAMES) - 1), st.sampled_from(PAUSES)), min_size=1, max_size=30
)

# No explaining of failures: it traces every line and takes minutes.
FEW = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


def play(houses: int, actions: list[Action], min_nodes: int, max_nodes: int, spares: int, lag: float = 0.0) -> None:
    upheaval = Upheaval(houses, min(min_nodes, max_nodes), max_nodes, spares, lag)
    for action, who, pause in actions:
        upheaval.act(action, who)
        upheaval.town.run(pause)
    upheaval.town.muted = upheaval.town.lost = False
    upheaval.town.run(20.0)
    upheaval.check()
    worlds = len(upheaval.town.worlds)
    upheaval.town.run(20.0)
    assert len(upheaval.town.worlds) == worlds, "nothing changes any more when nothing happens"
    upheaval.end()


@pytest.mark.parametrize("houses", [1, 2])
@settings(FEW)
@given(
    actions=ACTIONS,
    min_nodes=st.integers(1, 3),
    max_nodes=st.integers(1, 4),
    spares=st.integers(0, 2),
    lag=st.sampled_from(LAGS),
)
def test_whatever_happens(
    houses: int, actions: list[Action], min_nodes: int, max_nodes: int, spares: int, lag: float
) -> None:
    play(houses, actions, min_nodes, max_nodes, spares, lag)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_happens_for_longer() -> None:
    """REKNIT_HISTORIES and REKNIT_SEED say how many and from which seed on; a failure names its own."""
    begin, count = int(os.environ.get("REKNIT_SEED", "0")), int(os.environ.get("REKNIT_HISTORIES", "1000"))
    for seed in range(begin, begin + count):
        chance = random.Random(seed)
        actions = [
            (chance.choice(KINDS), chance.randrange(len(NAMES)), chance.choice(PAUSES))
            for _ in range(chance.randint(1, 40))
        ]
        try:
            numbers = [chance.randint(*span) for span in ((1, 3), (1, 3), (1, 4), (0, 2))]
            play(numbers[0], actions, *numbers[1:], lag=chance.choice(LAGS))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {actions}") from error
