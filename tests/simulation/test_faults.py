"""Each kind of fault alone: what must come of it, and what must not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from reknit.core.events import NodeHeld
from reknit.gossip.preset import TRAIN, Preset
from reknit.services.membership.cut import LONGEST_BURST
from reknit.services.membership.simulation.cluster import Cluster
from reknit.services.membership.simulation.faults import VERBS, docs, parse
from reknit.services.membership.simulation.invariants import Invariants
from reknit.services.membership.simulation.scenario import Outcome, Scenario, play

SEED = 11


def played(lines: str, seed: int = SEED) -> Outcome:
    outcome = play(Scenario.parse(lines), seed)
    assert not outcome.violations, "\n".join([lines, *map(str, outcome.violations), *outcome.lines])
    return outcome


def worlds(outcome: Outcome) -> list[str]:
    return [line for line in outcome.lines if " world " in line]


@pytest.mark.parametrize("how", ["power", "killed"])
def test_a_quarter_vanishes_in_one_change(how: str) -> None:
    outcome = played(f"nodes 40\nat 3 crash 25% {how}")
    assert len(worlds(outcome)) == 2
    assert " 30 -10 +0 " in worlds(outcome)[1]
    after = float(worlds(outcome)[1].split()[0]) - 3
    assert after < (1.8 if how == "power" else LONGEST_BURST + 0.1)


@pytest.mark.parametrize(
    "line",
    [
        "at 0 loss 5%",
        "at 0 starve 10% for 30",
        "at 3 mute 10% for 15",
        "at 3 outage for 5",
        "at 3 outage for 70",
        "at 3 jump 50% -3600",
        "at 3 jump 50% 3600",
        "at 3 hub-stop 0 for 5",
        "at 3 hub-kill 0 for 5",
        "at 3 freeze 5% for 0.6",
        "at 0 duplicate 10%\nat 0 reorder 20%",
    ],
)
def test_nobody_goes(line: str) -> None:
    """Late, slow, deaf or without the broker: nobody of these is dead."""
    outcome = played(f"nodes 30\n{line}\nat 30 loss 1%")
    assert len(worlds(outcome)) == 1


@pytest.mark.parametrize("share", ["10%", "30%", "50%"])
def test_a_partition_is_one_change_and_its_end_brings_all_back(share: str) -> None:
    outcome = played(f"nodes 40\nat 3 part {share} for 12")
    gone = round(40 * float(share[:-1]) / 100)
    assert f" {40 - gone} -{gone} +0 " in worlds(outcome)[1]
    assert " 40 -0 " in worlds(outcome)[-1]


@pytest.mark.parametrize(
    "fault", ["crash 3 power", "freeze 2 for 5", "wall 2 in for 8", "part 30% for 8", "restart 2 killed for 1"]
)
@pytest.mark.parametrize("outage", [5, 60])
def test_an_outage_of_the_broker_during_it(fault: str, outage: int) -> None:
    """Nobody hears anybody meanwhile; afterwards all is found out, and no more than that."""
    played(f"nodes 24\nat 4 {fault}\nat 4.5 outage for {outage}")


@pytest.mark.parametrize("jump", ["-3600", "3600"])
@pytest.mark.parametrize("after", ["0.3", "2", "5"])
def test_a_node_boots_again_under_its_name_with_another_wall_clock(jump: str, after: str) -> None:
    played(f"nodes 20\nat 3 jump 20 {jump}\nat 4 restart 2 power for {after}")


def test_the_service_dies_in_the_middle_of_a_cut_and_another_goes_on() -> None:
    for moment in (1.0, 1.2, 1.35, 1.45, 1.5):
        outcome = played(f"nodes 30\nhubs 2\nat 3 crash 5 power\nat {3 + moment} hub-kill 0 for 3")
        assert len(worlds(outcome)) == 2


def test_all_join_within_seconds() -> None:
    outcome = played("nodes 40\nstorm\nat 12 loss 1%")
    assert " 40 " in worlds(outcome)[-1]


def test_a_line_that_makes_no_sense_is_refused_by_name() -> None:
    for line, reason in {
        "in 3 crash 1 power": "not a fault",
        "at 3 explode 1": "no such fault",
        "at 3 crash 1": "crash wants: COUNT power|killed",
        "at 3 part 10%": "part wants: for SECONDS",
        "nodes 3\ncolour red": "no line 'colour red'",
    }.items():
        with pytest.raises(ValueError, match=reason.replace("|", r"\|")):
            Scenario.parse(line) if line.startswith("nodes") else parse(line)


def test_the_language_is_told_as_a_table() -> None:
    assert all(f" {verb}" in docs() for verb in VERBS)
    page = Path(__file__).parents[2] / "docs" / "simulation.md"
    assert docs() in page.read_text(), f"docs/simulation.md lacks the table; it should have\n{docs()}"


def test_a_node_that_comes_and_goes_is_kept_out_for_a_while_and_then_let_in() -> None:
    cluster = Cluster(nodes=10, seed=SEED)
    invariants = Invariants(cluster)
    cluster.begin()
    cluster.run(2.0)
    for _ in range(6):
        cluster.restart(cluster.nodes[3:4])
        cluster.run(3.0)
    held = [entry.event for entry in cluster.broker.log if isinstance(entry.event, NodeHeld)]
    assert {event.node for event in held} == {"n3"}
    world = cluster.world
    assert world is not None
    assert len(world.members) == 9
    assert invariants.world_is_whole(), "who is kept out is not missed"
    cluster.run(max(event.until for event in held) - cluster.broker.wall + 3.0)
    assert cluster.world is not None
    assert len(cluster.world.members) == 10
    assert not invariants.violations


def suspicions(preset: Preset) -> int:
    cluster = Cluster(nodes=40, seed=SEED, preset=preset)
    suspected: list[str] = []
    cluster.watchers.append(lambda _node, what: suspected.append(what.name) if what.what == "suspected" else None)
    cluster.begin()
    cluster.starve(cluster.draw(4), None)
    cluster.run(20.0)
    return len(suspected)


def test_who_reads_late_is_hardly_suspected() -> None:
    """A probe's answer counts when it comes late; were each of them a suspicion, all would tell it to all, for ever."""
    assert 4 * suspicions(TRAIN) < suspicions(dataclasses.replace(TRAIN, patience=0.0))


def test_a_node_whose_clock_was_set_back_comes_back_at_another_address_and_all_know() -> None:
    cluster = Cluster(nodes=12, seed=SEED)
    invariants = Invariants(cluster)
    cluster.begin()
    cluster.run(5.0)
    moved, port = cluster.nodes[3], cluster.nodes[3].address[1]
    cluster.crash([moved], "power")
    cluster.run(3.0)
    moved.skew -= 3600.0
    cluster.restart([moved])
    cluster.run(20.0)
    assert moved.address[1] != port
    for node in cluster.nodes:
        assert node.gossip is not None
        held = node.gossip.state(moved.name)
        assert held is not None
        assert (held.address, held.present) == (moved.address, True), node.name
    assert len({node.gossip.digest for node in cluster.nodes if node.gossip is not None}) == 1
    assert invariants.world_is_whole()
    assert not invariants.violations
