"""The twin of the broker does what the real one does: compare-and-set, ids once, backlog, heartbeats that are lost."""

from __future__ import annotations

import random

from reknit.core.events import AgentLeft, NodePulse, WorldChanged
from reknit.services.membership.simulation.broker import Broker, Entry
from reknit.services.membership.simulation.clock import Clock
from reknit.services.membership.simulation.link import Link
from reknit.services.membership.simulation.network import Network


class Bench:
    def __init__(self, loss: float = 0.0) -> None:
        self.clock = Clock()
        self.network = Network(random.Random(1))
        self.network.loss = loss
        self.broker = Broker(self.clock, self.network)
        self.heard: list[Entry] = []
        self.pulses: list[object] = []
        self.ended: list[str] = []
        self.runs = True
        self.service = self.link(-2, "service", kinds=None)
        self.node = self.link(3, "node")

    def link(self, host: int, name: str, kinds: object = ()) -> Link:
        made = Link(
            self.broker,
            random.Random(2),
            host=host,
            name=name,
            runs=lambda: host < 0 or self.runs,
            kinds=kinds,  # type: ignore[arg-type]
            on_entry=self.heard.append,
            on_pulse=self.pulses.append if kinds is None else None,
            on_notice=lambda _client, name: self.ended.append(name),
        )
        made.open()
        return made

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now + seconds)


def test_exactly_one_world_follows_another() -> None:
    bench = Bench()
    bench.run(0.1)
    answers: list[str] = []
    for name in ("a", "b"):
        world = WorldChanged(generation=1, run="r", status="running", decided_by=name)
        bench.node.post(world, name, expect_last=0, done=answers.append)
    bench.run(0.1)
    assert answers == ["stored", "stale"]
    assert [e.event.decided_by for e in bench.broker.log] == ["a"]  # type: ignore[union-attr]


def test_what_is_sent_again_is_stored_once() -> None:
    bench = Bench()
    bench.run(0.1)
    for _ in range(3):
        bench.node.post(AgentLeft(node="x"), "same")
    bench.run(0.1)
    assert len(bench.broker.log) == 1


def test_an_outage_loses_nothing_that_was_posted_and_readers_catch_up_in_order() -> None:
    bench = Bench(loss=0.3)
    bench.run(1.0)
    for number in range(40):
        bench.clock.after(number * 0.1, bench.node.post, AgentLeft(node=f"n{number}"), f"n{number}")
    bench.clock.after(1.0, bench.broker.fail)
    bench.clock.after(2.5, bench.broker.recover)
    bench.run(30.0)
    names = [f"n{number}" for number in range(40)]
    assert [e.event.node for e in bench.broker.log] == names  # type: ignore[union-attr]
    assert [e.event.node for e in bench.heard] == names  # type: ignore[union-attr]


def test_heartbeats_of_a_stalled_path_come_late_and_in_an_outage_never() -> None:
    bench = Bench()
    bench.run(0.1)
    bench.network.part([3])
    bench.node.pulse(NodePulse(node="x"))
    bench.run(0.5)
    assert bench.pulses == []
    bench.network.heal([3])
    bench.run(0.5)
    assert len(bench.pulses) == 1
    bench.broker.fail()
    bench.node.pulse(NodePulse(node="x"))
    bench.broker.recover()
    bench.run(2.0)
    assert len(bench.pulses) == 1


def test_heartbeats_of_one_sender_stay_in_order_whatever_is_lost() -> None:
    bench = Bench(loss=0.3)
    bench.run(3.0)
    bench.pulses.clear()
    for number in range(300):
        bench.clock.after(number * 0.001, bench.node.pulse, NodePulse(node="x", view=number))
    bench.run(10.0)
    assert [pulse.view for pulse in bench.pulses] == list(range(300))  # type: ignore[attr-defined]


def test_the_end_of_a_process_is_told_at_once_and_a_vanished_host_after_seconds() -> None:
    bench = Bench()
    bench.run(0.1)
    other = bench.link(4, "other")
    bench.run(0.1)
    other.end(reset=True)
    bench.run(0.02)
    assert bench.ended == ["other"]
    bench.runs = False
    bench.run(1.9)
    assert bench.ended == ["other"]
    bench.run(1.3)
    assert bench.ended == ["other", "node"]


def test_what_arrives_for_a_stopped_process_waits_for_it() -> None:
    bench = Bench()
    reader = bench.link(5, "reader", kinds=("node.left",))
    bench.run(0.1)
    bench.heard.clear()
    bench.runs = False
    bench.broker.append(AgentLeft(node="x"), "x", None)
    bench.run(0.5)
    assert len(bench.heard) == 1  # the service's
    bench.runs = True
    reader.resume()
    assert len(bench.heard) == 2


def test_streams_lose_nothing_and_datagrams_as_much_as_was_asked_for() -> None:
    network = Network(random.Random(5))
    network.loss = 0.2
    arrived = sum(len(network.datagram(1, 2)) for _ in range(20_000))
    assert 0.78 < arrived / 20_000 < 0.82
    delays = [network.segment(1, 2) for _ in range(20_000)]
    assert 0.18 < sum(d > 0.1 for d in delays) / 20_000 < 0.22
    network.part([2])
    assert network.datagram(1, 2) == ()
    assert not network.is_open(2, 1)
    network.heal([2])
    wall = network.wall([1], [2])
    assert network.datagram(1, 2) == ()
    assert network.loss_between(2, 1) == 0.2
    network.tear_down(wall)
    network.loss, network.duplication = 0.0, 1.0
    assert len(network.datagram(1, 2)) == 2
