"""Random histories: whatever happens in whatever order, these things hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from reknit.core.events import JobFinished, WorkerStuck, WorldChanged
from reknit.services.membership.view import View
from support.town import House, Town

NODES = "abcd"
PER_NODE = 2
NAMES = [f"{n}-{i}" for n in NODES for i in range(PER_NODE)]
PAUSES = [0.0, 0.001, 0.01, 0.05, 0.12, 0.3, 0.4, 1.0, 3.0]

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
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
                "break",
                "break-round",
                "disconnect",
                "leave",
                "idle",
                "node-leaves",
                "outage",
                "service-restarts",
                "scale",
                "commit",
                "stale-news",
            ]
        ),
        st.integers(0, len(NAMES) - 1),
        st.sampled_from(PAUSES),
    ),
    min_size=1,
    max_size=30,
)


# No explaining of failures: it traces every line and takes minutes.
FEW = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


@dataclasses.dataclass
class Truth:
    """What really happened, which the service can only infer."""

    alive: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    gone: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    """Killed, frozen, left: may be taken out, must be in the end."""


class History:
    """A town in which random things happen."""

    def __init__(self, houses: int, min_nodes: int, max_nodes: int, spares: int) -> None:
        self.town = Town(
            houses,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            nproc_per_node=PER_NODE,
            spares=spares,
            last_call=0.5,
            max_restarts=10_000,
        )
        self.truth = Truth()
        self.next_incarnation = 1
        for node in NODES:
            self.town.node(node, PER_NODE)
        for name in NAMES[:4]:
            self.register(name)
        self.town.run(2.0)
        self.town.say(
            self._committed(3)  # else failures before the first step would end the run
        )

    def _committed(self, last: int):
        from reknit.core.events import StepsCommitted

        return StepsCommitted(
            run="run1", first=0, last=last, generation=self.town.houses[0].view.record.generation, ranges=(), slots=8
        )

    def life(self, name: str) -> tuple[str, int] | None:
        body = self.town.bodies.get(name)
        return (name, body.incarnation) if body is not None else None

    def is_alive(self, name: str) -> bool:
        return self.life(name) in self.truth.alive

    def lose(self, name: str) -> None:
        life = self.life(name)
        assert life is not None
        self.truth.alive.discard(life)
        self.truth.gone.add(life)

    def register(self, name: str) -> None:
        if self.is_alive(name):
            self.town.again(name)
            return
        if not self.town.nodes.get(name[0]):
            self.town.node(name[0], PER_NODE)
        self.town.register(name, self.next_incarnation)
        self.truth.alive.add((name, self.next_incarnation))
        self.next_incarnation += 1

    def act(self, action: str, who: int) -> None:
        name, town = NAMES[who], self.town
        acts: dict[str, Callable[[], object]] = {
            "register": lambda: self.register(name),
            "outage": lambda: self.outage([0.5, 2.0, 10.0][who % 3]),
            "service-restarts": self.service_restarts,
            "scale": lambda: town.scale(2 + who),
            "commit": lambda: town.say(self._committed(10 * who)),
        }
        if action in acts:
            acts[action]()
        elif self.is_alive(name):
            self.act_on(action, name)

    def act_on(self, action: str, name: str) -> None:
        {
            "kill": self.kill,
            "dies": self.dies,
            "kill-silently": self.kill_silently,
            "kill-node": self.kill_node,
            "freeze": self.freeze,
            "break": self.break_one,
            "break-round": self.break_round,
            "disconnect": lambda name: self.town.disconnect(self.town.bodies[name].client_id),
            "leave": self.town.leaving,
            "idle": self.idle,
            "node-leaves": self.node_leaves,
            "stale-news": self.stale_news,
        }[action](name)

    def kill(self, name: str) -> None:
        self.lose(name)
        self.town.kill(name)

    def dies(self, name: str) -> None:
        self.lose(name)
        client = self.town.bodies[name].client_id
        self.town.later(0.02, lambda: self.town.disconnect(client))
        self.town.dies(name, [0.0, 0.001, 0.03, 1.0, None][self.next_incarnation % 5])

    def kill_silently(self, name: str) -> None:
        self.lose(name)
        self.town.kill(name, silent=True)
        self.town.disconnect(self.town.bodies[name].client_id)

    def on_node(self, node: str) -> list[str]:
        return [n for n in NAMES if n[0] == node and self.is_alive(n)]

    def kill_node(self, name: str) -> None:
        self.town.nodes[name[0]] = False
        for other in self.on_node(name[0]):
            self.lose(other)
            self.town.kill(other, silent=True)
            self.town.later(0.003, lambda c=self.town.bodies[other].client_id: self.town.disconnect(c))

    def freeze(self, name: str) -> None:
        self.lose(name)
        body = self.town.bodies[name]
        body.beats = False
        stuck = WorkerStuck(worker=name, incarnation=body.incarnation, node=body.node, state="T stopped")
        self.town.later(0.5, lambda: self.town.say(stuck) and None)

    def members(self) -> list[str]:
        return self.town.members if self.town.worlds else []

    def break_one(self, name: str) -> None:
        members = self.members()
        if name in members and len(members) > 1:
            self.town.broken(name, members[(members.index(name) + 1) % len(members)])

    def break_round(self, _name: str) -> None:
        for member in self.members():
            if self.is_alive(member):
                self.break_one(member)

    def idle(self, name: str) -> None:
        self.lose(name)
        self.town.leaving(name)
        self.town.idle(name)
        self.town.bodies[name].beats = False

    def node_leaves(self, name: str) -> None:
        for other in self.on_node(name[0]):
            self.lose(other)
            self.town.exited(other, code=0, expected=True)
        self.town.node_left(name[0])

    def stale_news(self, name: str) -> None:
        generation = self.town.houses[0].view.record.generation
        self.town.broken(name, NAMES[0], generation=max(0, generation - 1))

    def outage(self, seconds: float) -> None:
        self.town.muted = True
        self.town.later(seconds, lambda: setattr(self.town, "muted", False))

    def service_restarts(self) -> None:
        view = self.town.replay()
        assert view.record == self.town.houses[0].view.record, "the log alone gives the same record"
        self.town.houses[0] = House(View("job", view.proposer, view.record, view.sight))


def check(history: History) -> None:
    town, truth = history.town, history.truth
    worlds = [e for _, e, _ in town.log if isinstance(e, WorldChanged)]
    assert [w.generation for w in worlds] == list(range(1, len(worlds) + 1)), "one sequence, no gap"
    removed: list[tuple[str, int]] = []
    before: WorldChanged | None = None
    for world in worlds:
        lives = [(m.worker, m.incarnation) for m in world.members]
        assert len({w for w, _ in lives}) == len(lives), "members are unique"
        assert len({m.address for m in world.members}) == len(lives)
        roles = [m.role for m in world.members]
        assert roles == sorted(roles), "actives before spares"
        if before is not None:
            old = [(m.worker, m.incarnation) for m in before.members]
            removed += [life for life in old if life not in lives]
            assert {w for w, _ in old} - {w for w, _ in lives} <= set(world.removed)
            reordered = "broke repeatedly" in world.reason or not before.members or "the ring begins" in world.reason
            actives = [(m.worker, m.incarnation) for m in before.members if m.role == "active"]
            stay = [life for life in lives if life in actives]
            if not reordered and before.status == "running":
                assert stay == [life for life in actives if life in lives], "survivors keep their relative order"
        assert world.reason
        before = world
    assert len(removed) == len(set(removed)), "every life is taken out once at most"
    assert set(removed) <= truth.gone, f"a healthy worker was evicted: {set(removed) - truth.gone}"
    now = {(m.worker, m.incarnation) for m in town.world.members}
    assert not now & truth.gone, f"still a member though gone: {now & truth.gone}"
    assert not [e for _, e, _ in town.log if isinstance(e, JobFinished)]
    leaving = {life for life in truth.alive if town.houses[0].view.record.workers[life[0]].leaving}
    assert truth.alive - leaving <= now, f"alive and not let in: {truth.alive - leaving - now}"
    assert town.replay().record == town.houses[0].view.record


@pytest.mark.parametrize("houses", [1, 2])
@settings(FEW)
@given(actions=ACTIONS, min_nodes=st.integers(1, 3), max_nodes=st.integers(1, 4), spares=st.integers(0, 2))
def test_whatever_happens(
    houses: int, actions: list[tuple[str, int, float]], min_nodes: int, max_nodes: int, spares: int
) -> None:
    history = History(houses, min(min_nodes, max_nodes), max_nodes, spares)
    for action, who, pause in actions:
        history.act(action, who)
        history.town.run(pause)
    history.town.muted = False
    history.town.run(20.0)
    check(history)
    worlds = len(history.town.worlds)
    history.town.run(20.0)
    assert len(history.town.worlds) == worlds, "nothing changes any more when nothing happens"


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(FEW, max_examples=1000)
@given(
    houses=st.integers(1, 3),
    actions=ACTIONS,
    min_nodes=st.integers(1, 3),
    max_nodes=st.integers(1, 4),
    spares=st.integers(0, 2),
)
def test_whatever_happens_for_longer(
    houses: int, actions: list[tuple[str, int, float]], min_nodes: int, max_nodes: int, spares: int
) -> None:
    test_whatever_happens.hypothesis.inner_test(houses, actions, min_nodes, max_nodes, spares)  # type: ignore[attr-defined]
