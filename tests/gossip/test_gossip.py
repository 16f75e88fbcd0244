"""Gossip cores in a network of virtual time: who comes, goes, is cut off, sleeps."""

from __future__ import annotations

import pytest

from reknit.gossip.gossip import Gossip
from reknit.gossip.identity import Self
from reknit.gossip.message import Packet, Ping
from reknit.gossip.preset import FAST, TRAIN
from reknit.gossip.rumour import Rumour, State, said
from reknit.gossip.tally import count, observers
from support.gossip_net import Net, address


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_start_at_once_find_each_other(seed: int) -> None:
    net = Net(seed=seed, loss=0.02)
    for i in range(20):
        net.add(f"n{i}", seeds=["n0"])
    net.until(net.agree, 10.0)


def test_seeds_that_start_late_are_found() -> None:
    net = Net()
    net.add("a", seeds=["b"])
    net.run(3.0)
    net.add("b", seeds=["a"])
    net.until(net.agree, 10.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("preset", [TRAIN, FAST], ids=lambda p: p.name)
def test_a_crash_is_reported_within_the_silence_and_an_interval(seed: int, preset: object) -> None:
    net = Net(seed=seed, preset=preset)  # type: ignore[arg-type]
    names = net.crowd(20)
    net.run(5.0)
    watched = observers(names, net.preset)
    net.crash("n3", "n4")

    def out() -> bool:
        said = {name: node.silent for name, node in net.nodes.items()}
        return set(count(said, watched, net.preset).out) == {"n3", "n4"}

    assert net.until(out) <= net.preset.silence + 0.1
    net.until(net.agree, 15.0)
    assert {name for _, name in net.said("gone")} == {"n3", "n4"}


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_held_for_dead_at_five_percent_loss(seed: int) -> None:
    net = Net(seed=seed, loss=0.05)
    net.crowd(20)
    net.run(120.0)
    assert net.said("gone") == []
    assert net.agree()


def test_one_that_sleeps_is_missed_and_is_back_when_it_wakes() -> None:
    net = Net()
    net.crowd(10)
    net.run(3.0)
    net.stopped.add("n3")
    net.run(20.0)
    assert {name for _, name in net.said("gone")} == {"n3"}
    net.stopped.discard("n3")
    net.until(net.agree, 20.0)
    assert net.nodes["n3"].incarnation > 0
    assert {name for who, name in net.said("gone") if who == "n3"} == set()  # it was asleep, the others were not


def test_halves_of_a_network_find_each_other_again() -> None:
    net = Net()
    names = net.crowd(12)
    left = set(names[:4])
    net.run(3.0)
    net.passes = lambda a, b: (a in left) == (b in left)
    net.run(200.0)  # longer than the dead are remembered as such
    assert {n: net.nodes[n].size for n in names} == {n: 4 if n in left else 8 for n in names}
    net.passes = lambda _a, _b: True
    net.until(net.agree, 40.0)


def test_who_cannot_hear_says_that_it_is_sick_and_nothing_of_others() -> None:
    net = Net()
    net.crowd(12)
    net.run(3.0)
    net.passes = lambda _a, b: b != "n5"
    net.run(2.0)
    assert net.nodes["n5"].sick
    assert not net.nodes["n5"].silent
    assert sum("n5" in node.silent for node in net.nodes.values()) >= 2


def test_a_link_that_is_gone_between_two_evicts_neither() -> None:
    net = Net()
    net.crowd(12)
    net.run(3.0)
    pair = {"n1", net.nodes["n1"].subjects[0]}
    net.passes = lambda a, b: {a, b} != pair
    net.run(60.0)
    assert net.said("gone") == []  # others answered for them
    watched = observers(net.nodes, TRAIN)
    assert not count({n: g.silent for n, g in net.nodes.items()}, watched, TRAIN).out


def test_a_restart_under_the_same_name_holds_at_once() -> None:
    net = Net()
    net.crowd(8)
    net.run(3.0)
    net.crash("n2")
    net.run(0.2)
    net.add("n2", epoch=2, seeds=["n0"])
    net.until(net.agree, 10.0)
    assert {name for _, name in net.said("gone")} == set()


def test_a_name_that_left_may_be_taken_at_once_at_another_address() -> None:
    net = Net()
    net.crowd(5)
    net.run(2.0)
    net.nodes["n2"].leave(net.now)
    net._flush("n2")
    net.crash("n2")
    net.run(1.0)
    assert all(not (held := g.state("n2")) or held.state == State.LEFT for g in net.nodes.values())
    newcomer = Gossip(Self("n2", 2, address("elsewhere")), preset=TRAIN, seed=1, now=net.now, seeds=[address("n0")])
    net.nodes["elsewhere"] = newcomer
    net._flush("elsewhere")
    net.run(5.0)
    assert all((held := g.state("n2")) is not None and held.address == address("elsewhere") for g in net.nodes.values())


def test_a_new_name_at_an_old_address_retires_the_old_one() -> None:
    net = Net()
    net.crowd(5)
    net.run(2.0)
    net.crash("n2")
    net.nodes["n2"] = Gossip(Self("fresh", 2, address("n2")), preset=TRAIN, seed=1, now=net.now, seeds=[address("n0")])
    net._flush("n2")
    net.run(1.0)
    for node in net.nodes.values():
        assert sorted(node.alive()) == sorted({"n0", "n1", "fresh", "n3", "n4"})


def test_who_is_replaced_by_a_later_process_of_its_name_is_told() -> None:
    net = Net()
    net.crowd(5)
    net.run(1.0)
    later = Gossip(Self("n2", 9, address("x")), preset=TRAIN, seed=1, now=net.now, seeds=[address("n0")])
    net.nodes["x"] = later
    net._flush("x")
    net.run(5.0)
    assert ("n2", "n2") in net.said("superseded")


@pytest.mark.parametrize("down", [0.2, 3.0, 20.0])
def test_a_restart_after_the_clock_was_set_back_is_no_predecessor_of_itself(down: float) -> None:
    """Its epoch is less than that of the process before; it learns of that from the others and takes a greater one."""
    net = Net()
    names = net.crowd(8)
    net.run(3.0)
    net.crash("n2")
    net.run(down)
    net.add("n2", epoch=-3_600_000, seeds=["n0"])
    net.until(net.agree, 15.0)
    assert all((held := g.state("n2")) is not None and held.epoch == 2 for g in net.nodes.values())
    assert net.said("superseded") == []
    assert set(names) == set(net.nodes)


def test_an_old_leave_does_not_beat_a_new_join() -> None:
    net = Net()
    net.crowd(4)
    net.crash("n1")
    net.add("n1", epoch=2, seeds=["n0"])
    net.until(net.agree, 10.0)
    late = said(Rumour("n1", 1, 7, 0, *address("n1")), State.LEFT, "n1")
    for name in ("n0", "n2", "n3"):
        net.nodes[name].on_packet(net.now, Packet("n2" if name != "n2" else "n0", 1, name, (), (late,)), address("n2"))
    net.run(5.0)
    assert net.agree()


def test_packets_for_another_or_of_a_former_life_are_ignored() -> None:
    net = Net()
    net.crowd(3)
    net.run(1.0)
    node = net.nodes["n0"]
    node.transmit()
    node.on_packet(net.now, Packet("n1", 1, "n2", (Ping(1),)), address("n1"))
    node.on_packet(net.now, Packet("n0", 1, "n0", (Ping(1),)), address("n0"))
    assert node.transmit() == []
    node.on_packet(net.now, Packet("n1", 0, "n0", (Ping(1),)), address("n1"))
    [(_, answer)] = node.transmit()
    assert answer.parts == ()
    assert [r.epoch for r in answer.rumours] == [1]


def test_round_trips_to_subjects_are_measured() -> None:
    net = Net()
    net.crowd(5)
    net.run(5.0)
    for node in net.nodes.values():
        for subject in node.subjects:
            took = node.rtt(subject)
            assert took is not None
            assert 0.002 <= took <= 0.006


def test_the_same_seed_replays_to_the_letter() -> None:
    def play() -> list[object]:
        net = Net(seed=3, loss=0.1)
        for i in range(8):
            net.add(f"n{i}", seeds=["n0"])
        net.run(10.0)
        net.crash("n4")
        net.run(20.0)
        return [net.sent, net.happened]

    assert play() == play()
