"""The service's own deafness is never anybody's death."""

from __future__ import annotations

import pytest

from reknit.core.events import WorkerStuck
from reknit.core.service import Tick
from support.town import Town

NAMES = [f"{n}-{i}" for n in "abcd" for i in range(2)]


def town_of_four() -> Town:
    town = Town(min_nodes=1, max_nodes=4, nproc_per_node=2)
    town.begin(*NAMES)
    town.committed(3)
    town.run(2.0)
    return town


@pytest.mark.parametrize("seconds", [1.0, 10.0, 60.0])
def test_an_outage_of_the_broker_evicts_nobody(seconds: float) -> None:
    town = town_of_four()
    town.muted = True
    town.run(seconds)
    town.muted = False
    town.run(10.0)
    assert len(town.worlds) == 1
    assert not town.dials


@pytest.mark.parametrize("seconds", [1.0, 10.0])
def test_those_who_come_back_late_get_the_time(seconds: float) -> None:
    """Clients reconnect one after another, some seconds late; others wait for them in the ring meanwhile."""
    town = town_of_four()
    town.muted = True
    for body in town.bodies.values():
        body.phase = "reduce"
    town.bodies["d-1"].phase = "compute"
    town.run(seconds)
    town.muted = False
    for i, name in enumerate(NAMES):
        town.bodies[name].beats = False
        town.later(0.3 * i, lambda name=name: setattr(town.bodies[name], "beats", True))
    town.run(15.0)
    assert len(town.worlds) == 1


def test_a_broker_that_drops_everybody_makes_us_dial_and_evict_nobody() -> None:
    town = town_of_four()
    for body in town.bodies.values():
        town.disconnect(body.client_id)
    town.muted = True
    town.run(5.0)
    town.muted = False
    town.run(5.0)
    assert len(town.worlds) == 1
    assert len({d.worker for d in town.dials}) == len(NAMES)


@pytest.mark.parametrize("back_after", [3.0, 20.0])
def test_a_broker_that_is_cut_off_with_us_evicts_nobody(back_after: float) -> None:
    """It drops everybody's connection, and nobody answers a dial: two kinds of evidence, and one fault that is ours."""
    town = town_of_four()
    town.muted = True
    for body in town.bodies.values():
        body.dial = "silent"
    town.run(2.0)
    for body in town.bodies.values():
        town.disconnect(body.client_id)
    town.run(back_after)
    assert len(town.dials) >= len(NAMES)
    town.muted = False
    for i, (name, body) in enumerate(town.bodies.items()):
        body.dial, body.beats = "open", False
        town.later(0.1 * i, lambda name=name: setattr(town.bodies[name], "beats", True))
    town.run(10.0)
    assert len(town.worlds) == 1


def test_who_does_not_come_back_from_it_is_found_all_the_same() -> None:
    town = town_of_four()
    town.muted = True
    for body in town.bodies.values():
        body.dial = "silent"
        town.disconnect(body.client_id)
    town.run(5.0)
    town.muted = False
    town.bodies["c-0"].beats = False
    for name in NAMES:
        if name != "c-0":
            town.bodies[name].dial = "open"
    assert town.until(lambda: "c-0" not in town.members) < 4.0
    assert len(town.members) == len(NAMES) - 1


def test_when_all_hosts_are_gone_for_a_minute_they_are_given_up() -> None:
    town = town_of_four()
    town.muted = True
    for body in town.bodies.values():
        body.dial = "silent"
        town.disconnect(body.client_id)
    town.run(50.0)
    assert len(town.worlds) == 1
    town.run(20.0)
    assert town.world.status == "paused"


def test_a_death_during_the_outage_is_found_when_the_log_is_heard() -> None:
    town = town_of_four()
    town.muted = True
    town.bodies["b-0"].beats = False
    town.run(10.0)
    town.muted = False
    town.run(0.1)
    town.kill("b-0")
    assert town.until(lambda: "b-0" not in town.members) < 0.05


def test_after_the_outage_a_frozen_worker_is_found_as_ever() -> None:
    town = town_of_four()
    town.muted = True
    town.run(10.0)
    town.muted = False
    town.run(3.0)
    body = town.bodies["b-0"]
    body.beats = False
    town.say(WorkerStuck(worker="b-0", incarnation=1, node="b", state="T stopped"))
    assert town.until(lambda: "b-0" not in town.members) < 2.0


def test_a_worker_frozen_in_the_outage_is_found_after_it() -> None:
    town = town_of_four()
    town.muted = True
    town.bodies["b-0"].beats = False
    town.later(0.5, lambda: town.say(WorkerStuck(worker="b-0", incarnation=1, node="b", state="T stopped")) and None)
    town.run(5.0)
    town.muted = False
    assert town.until(lambda: "b-0" not in town.members) < 2.5


def test_a_pause_of_our_own_process_evicts_nobody() -> None:
    """Stopped for 20 s and resumed: the first thing it sees is a clock far ahead of everybody's last heartbeat."""
    town = town_of_four()
    for body in town.bodies.values():
        body.phase = "reduce"
    house = town.houses[0]
    town.now += 20.0
    town._next_tick = town._next_beat = town.now + 1.0
    for _ in range(3):
        town._tell(house, Tick())
    town.run(5.0)
    assert len(town.worlds) == 1
    assert not town.dials


def test_heartbeats_of_another_job_or_nobody_known_do_no_harm() -> None:
    town = town_of_four()
    ghost = town.start("ghost-0")
    town.bodies["ghost-0"] = ghost
    town.run(3.0)
    assert len(town.worlds) == 1
