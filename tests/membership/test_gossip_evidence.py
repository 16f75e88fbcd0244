"""What the neighbours of a node say, and what it needs to be borne out."""

from __future__ import annotations

import pytest

from reknit.gossip.preset import TRAIN
from reknit.gossip.tally import observers
from support.town import Town

NAMES = tuple("abcdefgh")
WATCHED = observers(NAMES, TRAIN)


def ring(**spec: object) -> Town:
    town = Town(**{"min_nodes": 1, "max_nodes": len(NAMES), "gossip": "train", **spec})
    town.begin(*(f"{name}-0" for name in NAMES))
    town.committed(3)
    town.run(2.0)
    return town


def mute(town: Town, *nodes: str) -> None:
    """The hosts are gone: nothing of them is heard, and nothing says why."""
    for node in nodes:
        town.nodes[node] = False
        town.bodies[f"{node}-0"].beats = False
        town.bodies[f"{node}-0"].dial = "open"  # so that no dial decides


def miss(town: Town, *nodes: str, observers_of: int = 99) -> None:
    """So many observers of each of these nodes tell that they get no answer."""
    for node in nodes:
        for observer in WATCHED[node][:observers_of]:
            if observer not in nodes:
                town.misses[observer] = (*town.misses.get(observer, ()), node)


def test_neighbours_and_a_short_silence_here_are_two_kinds() -> None:
    town = ring()
    mute(town, "c")
    miss(town, "c")
    took = town.until(lambda: "c-0" not in town.members, 10.0)
    assert 0.5 < took < 1.2  # silence alone would be evidence after 1.3 s, and is not enough alone
    assert {e.source for e in town.world.evidence} == {"gossip", "heartbeat"}
    assert "get no answer from node c" in " ".join(e.detail for e in town.world.evidence)


def test_neighbours_alone_evict_nobody() -> None:
    town = ring()
    miss(town, "c", "d")
    town.run(30.0)
    assert len(town.worlds) == 1


def test_silence_alone_evicts_nobody() -> None:
    town = ring()
    mute(town, "c")
    town.run(30.0)
    assert len(town.worlds) == 1


def test_an_agent_that_is_gone_is_not_its_workers_death() -> None:
    town = ring()
    town.nodes["c"] = False
    miss(town, "c")
    town.run(30.0)
    assert len(town.worlds) == 1


def test_a_disconnect_of_one_whom_we_hear_is_not_borne_out_by_neighbours() -> None:
    town = ring()
    miss(town, "c")  # UDP to it is closed, say
    town.disconnect(town.bodies["c-0"].client_id)
    town.run(10.0)
    assert len(town.worlds) == 1


def test_too_few_neighbours_say_nothing_and_so_do_sick_ones() -> None:
    few = ring()
    mute(few, "c")
    miss(few, "c", observers_of=1)
    sick = ring()
    mute(sick, "c")
    miss(sick, "c")
    sick.sick = set(sick.misses)
    for town in (few, sick):
        town.run(20.0)
        assert len(town.worlds) == 1


def test_sick_neighbours_abstain_and_the_others_are_enough() -> None:
    """When many vanish at once some that live miss most of those that they watch, and can tell nothing of them."""
    town = ring()
    mute(town, "c")
    miss(town, "c", observers_of=3)
    town.sick = set(WATCHED["c"][3:])
    assert town.until(lambda: "c-0" not in town.members, 10.0) < 1.2
    heard = ring()
    miss(heard, "c", observers_of=3)
    heard.sick = set(WATCHED["c"][3:])
    heard.run(10.0)
    assert len(heard.worlds) == 1


def test_reports_that_nobody_renews_are_void() -> None:
    town = ring()
    miss(town, "c")
    town.run(1.0)
    town.misses = {}
    mute(town, "c")
    town.run(20.0)
    assert len(town.worlds) == 1


@pytest.mark.parametrize("together", [("b", "c"), ("b", "c", "d", "e")])
def test_hosts_that_go_together_are_one_change(together: tuple[str, ...]) -> None:
    town = ring()
    mute(town, *together)
    miss(town, *together)
    town.until(lambda: f"{together[0]}-0" not in town.members, 10.0)
    town.run(5.0)
    assert len(town.worlds) == 2
    assert town.members == [f"{n}-0" for n in NAMES if n not in together]


def test_a_cut_waits_for_one_who_is_between() -> None:
    town = ring()
    mute(town, "b", "c")
    miss(town, "b")
    miss(town, "c", observers_of=2)
    town.run(1.0)
    assert len(town.worlds) == 1, "c is unstable"
    miss(town, "c")
    town.until(lambda: len(town.worlds) == 2, 5.0)
    assert town.world.removed == ("b-0", "c-0")


def test_one_who_stays_between_holds_a_cut_up_for_a_while_only() -> None:
    town = ring()
    mute(town, "b", "c")
    miss(town, "b")
    miss(town, "c", observers_of=2)
    town.until(lambda: len(town.worlds) == 2, 4.0)
    assert town.world.removed == ("b-0",)


def test_without_the_broker_nobody_is_missed() -> None:
    town = ring()
    miss(town, "c")
    town.run(1.0)
    town.muted = True
    town.run(20.0)
    town.muted = False
    town.run(2.0)
    assert len(town.worlds) == 1


def test_a_service_that_starts_anew_finds_the_same() -> None:
    town = ring()
    mute(town, "c")
    miss(town, "c")
    town.houses[0].view = town.replay()
    town.until(lambda: "c-0" not in town.members, 10.0)
    assert len(town.worlds) == 2


@pytest.mark.parametrize("later", [0.0, 0.03, 0.06, 0.09])
def test_the_cut_falls_when_it_is_due_not_at_the_next_tick(later: float) -> None:
    """Heartbeats are late enough 0.85 s after the last one; what has not changed for 0.1 s is acted on then."""
    town = ring()
    town.run(later)
    mute(town, "c")
    miss(town, "c")
    last = town.houses[0].view.sight.streams["c-0"].last
    town.until(lambda: "c-0" not in town.members, 5.0)
    assert 0.8 < town.now - last < 0.98
