"""The invariants themselves: each rule, broken on purpose, is found broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import pytest

from reknit.core.broker import MAX_PAYLOAD
from reknit.core.decision import Decision, Out, Tick, Told
from reknit.core.events import WorldChanged
from reknit.gossip import view as gossip_view
from reknit.gossip.rumour import State, said
from reknit.services.membership.decide import decide
from reknit.services.membership.simulation import invariants as invariants_of
from reknit.services.membership.simulation.cluster import Cluster
from reknit.services.membership.simulation.invariants import Invariants
from reknit.services.membership.simulation.scenario import Scenario, play
from reknit.services.membership.view import View

CRASH = Scenario.parse("nodes 12\nat 3 crash 2 power")
Twist = Callable[[View, Out], Out | None]


def broken(scenario: Scenario, reducer: Callable[[View, Told], Decision[View]]) -> set[str]:
    return {violation.rule for violation in play(scenario, 1, reducer=reducer).violations}


def twisted(twist: Twist) -> Callable[[View, Told], Decision[View]]:
    """The real reducer, with its worlds made wrong, except for the first."""

    def reducer(view: View, told: Told) -> Decision[View]:
        decision = decide(view, told)
        outs = []
        for out in decision.out:
            wrong = twist(view, out) if isinstance(out.event, WorldChanged) and view.record.generation else out
            outs += [wrong] if wrong is not None else []
        return dataclasses.replace(decision, out=tuple(outs))

    return reducer


def changed(out: Out, **changes: object) -> Out:
    return dataclasses.replace(out, event=msgspec.structs.replace(out.event, **changes))


def test_a_world_that_the_broker_would_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invariants_of.PAYLOAD == MAX_PAYLOAD
    monkeypatch.setattr(invariants_of, "PAYLOAD", 1500)
    assert broken(Scenario(12), decide) == {"payload"}


def test_nothing_is_found_where_nothing_is_broken() -> None:
    assert broken(CRASH, decide) == set()


def test_a_service_that_evicts_a_healthy_node() -> None:
    def reducer(view: View, told: Told) -> Decision[View]:
        decision = decide(view, told)
        world = view.record.world
        if not isinstance(told.event, Tick) or told.now < 4.0 or world is None or world.generation != 1:
            return decision
        without = msgspec.structs.replace(
            world,
            generation=2,
            members=world.members[1:],
            removed=(world.members[0].worker,),
            added=(),
            evidence=(),
            reason="whim",
        )
        return dataclasses.replace(decision, out=(Out(without, id="whim", expect_last=view.record.world_seq),))

    outcome = play(Scenario(12), 1, reducer=reducer)
    assert [v.rule for v in outcome.violations] == ["no healthy node is evicted"]
    assert "whim" in str(outcome.violations[0])


def test_a_service_that_leaves_the_dead_in() -> None:
    assert broken(CRASH, twisted(lambda _view, _out: None)) == {"every crash is evicted"}


def test_a_service_that_counts_wrong() -> None:
    def twist(_view: View, out: Out) -> Out:
        assert isinstance(out.event, WorldChanged)
        return changed(out, generation=out.event.generation + 3)

    assert "sequence" in broken(CRASH, twisted(twist))


def test_a_service_that_does_not_say_who_went() -> None:
    assert "difference" in broken(CRASH, twisted(lambda _view, out: changed(out, removed=())))


def test_a_service_that_names_somebody_twice() -> None:
    def twist(_view: View, out: Out) -> Out:
        assert isinstance(out.event, WorldChanged)
        return changed(out, members=(*out.event.members, out.event.members[0]))

    assert "members" in broken(CRASH, twisted(twist))


def test_the_dead_that_come_back() -> None:
    cluster = Cluster(nodes=6, seed=1)
    invariants = Invariants(cluster)
    cluster.begin()
    cluster.run(3.0)
    first = cluster.worlds[0][1]
    cluster.crash(cluster.draw(1), "power")
    cluster.run(4.0)
    assert not invariants.violations
    again = msgspec.structs.replace(first, generation=3, removed=(), added=cluster.worlds[-1][1].removed)
    cluster.broker.append(again, "again", None)
    assert [v.rule for v in invariants.violations] == ["dead for good"]


def test_a_view_that_forgets_what_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refuted suspicion kills after all if any statement overwrites any other."""
    monkeypatch.setattr(gossip_view, "newer", lambda rumour, than: than is None or rumour.rank != than.rank)
    outcome = play(Scenario.parse("nodes 16\nat 0 loss 5%\nat 0 starve 20% for 30\nat 3 mute 2 for 12"), 3)
    assert "views only get newer" in {v.rule for v in outcome.violations}


def test_views_that_differ() -> None:
    cluster = Cluster(nodes=6, seed=1)
    invariants = Invariants(cluster)
    cluster.begin()
    cluster.run(3.0)
    assert invariants.views_are_equal(final=True)
    gossip = cluster.nodes[2].gossip
    assert gossip is not None
    held = gossip.state("n4")
    assert held is not None
    gossip._view.put(said(held, State.DEAD, "n2"), cluster.clock.now)
    assert not invariants.views_are_equal(final=True)
    assert "n2 misses n4" in str(invariants.violations[-1])


def test_a_reader_that_missed_a_world() -> None:
    cluster = Cluster(nodes=6, seed=1)
    invariants = Invariants(cluster)
    cluster.begin()
    cluster.run(3.0)
    for _ in range(2):
        cluster.crash(cluster.draw(1), "power")
        cluster.run(4.0)
    invariants.order()
    assert not invariants.violations
    worker = next(n.worker for n in cluster.nodes if n.up)
    assert worker is not None
    del worker.worlds[1]
    invariants.order()
    assert [v.rule for v in invariants.violations] == ["seen in order"]


def test_two_services_that_read_the_same_and_know_another() -> None:
    cluster = Cluster(nodes=6, seed=1, hubs=2)
    invariants = Invariants(cluster)
    cluster.begin()
    cluster.run(3.0)
    invariants.order()
    assert not invariants.violations
    hub = cluster.hubs[1]
    hub.view = dataclasses.replace(hub.view, record=dataclasses.replace(hub.view.record, restarts=7))
    invariants.order()
    assert [v.rule for v in invariants.violations] == ["one log, one record"]


def test_somebody_who_is_left_outside() -> None:
    cluster = Cluster(nodes=6, seed=1)
    invariants = Invariants(cluster)
    cluster.begin()
    cluster.run(3.0)
    cluster.nodes[0].boots += 1
    cluster.nodes[0]._start_worker()  # a worker that registers later than anybody looks
    assert not invariants.world_is_whole(final=True)
    assert "everybody is back" in {v.rule for v in invariants.violations}
