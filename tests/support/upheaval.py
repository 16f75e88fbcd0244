"""A town in which random things happen, and what must hold whatever happens.

`Upheaval` knows what the service can only infer: who lives, who has the state. It looks at each world when it comes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from reknit.core.events import Event, JobFinished, StepsCommitted, WorkerStuck, WorldChanged
from reknit.services.membership.view import View
from reknit.services.shards import view as shards
from support.town import House, Town

NODES = "abcd"
PER_NODE = 2
NAMES = [f"{n}-{i}" for n in NODES for i in range(PER_NODE)]
LEARN = [0.0, 0.0, 0.05, 0.3, 0.9, 2.5, None]
"""Seconds that newcomers take to learn; None: for ever."""
COMES_BACK = 0.02
"""Seconds in which a live worker that a world left out registers again."""

Life = tuple[str, int]


@dataclasses.dataclass
class Truth:
    """What really happened, which the service can only infer."""

    alive: set[Life] = dataclasses.field(default_factory=set)
    gone: set[Life] = dataclasses.field(default_factory=set)
    """Killed, frozen, left: may be taken out, must be in the end."""
    doubt: set[Life] = dataclasses.field(default_factory=set)
    """Were frozen for a while: may be taken out, need not be."""
    polite: set[Life] = dataclasses.field(default_factory=set)
    """Said themselves that they leave."""
    never: set[Life] = dataclasses.field(default_factory=set)
    """Do not get to learn."""


class Upheaval:
    """A town in which random things happen."""

    def __init__(self, houses: int, min_nodes: int, max_nodes: int, spares: int, lag: float = 0.0) -> None:
        self.town = Town(
            houses,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            nproc_per_node=PER_NODE,
            spares=spares,
            last_call=0.5,
            max_restarts=10_000,
        )
        self.town.lag = lag
        self.truth = Truth()
        self.shards = shards.View("job")
        self.next_incarnation = 1
        self._say = self.town.say
        self.town.say = self.say  # type: ignore[method-assign]
        for seq, event, _ in self.town.log:
            self.shards = shards.see(self.shards, event, seq, "")
        for node in NODES:
            self.town.node(node, PER_NODE)
        for name in NAMES[:4]:
            self.register(name)
        self.town.run(2.0)
        self.commit(3)  # else failures before the first step would end the run

    def commit(self, last: int) -> None:
        generation = self.town.houses[0].view.record.generation
        self.town.say(StepsCommitted(run="run1", first=0, last=last, generation=generation, ranges=(), slots=8))

    # -------------------------------------------------------------------------------------------- what happens

    def life(self, name: str) -> Life | None:
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
        self.town.learn = LEARN[self.next_incarnation * 5 % len(LEARN)]
        self.town.register(name, self.next_incarnation)
        self.begun((name, self.next_incarnation))

    def begun(self, life: Life) -> None:
        """A life that may be let in has begun."""
        self.truth.alive.add(life)
        if self.town.learn is None:
            self.truth.never.add(life)
        self.next_incarnation += 1

    def act(self, action: str, who: int) -> None:
        name, town = NAMES[who], self.town
        acts: dict[str, Callable[[], object]] = {
            "register": lambda: self.register(name),
            "outage": lambda: self.outage([0.5, 2.0, 10.0][who % 3]),
            "unheard": lambda: self.unheard([0.02, 0.5, 4.0][who % 3]),
            "service-restarts": self.service_restarts,
            "service-forgets": self.service_forgets,
            "scale": lambda: town.scale(2 + who),
            "commit": lambda: self.commit(10 * who),
            "thaw": lambda: self.thaw(who),
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
            "drain": self.drain,
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

    def thaw(self, who: int) -> None:
        """A frozen process runs on; out of the world, it comes back as a new member."""
        stopped = [
            body
            for body in self.town.bodies.values()
            if not body.beats and body.dial == "open" and (body.worker, body.incarnation) not in self.truth.polite
        ]
        if not stopped:
            return
        body = stopped[who % len(stopped)]
        name, life = body.worker, (body.worker, body.incarnation)
        body.beats = True
        self.truth.gone.discard(life)
        self.truth.doubt.add(life)
        self.truth.alive.add(life)
        running = WorkerStuck(worker=name, incarnation=body.incarnation, node=body.node, state="R running")
        self.town.later(0.5, lambda: self.town.say(running) and None)
        if life not in self.town.lives_of(self.town.world) and life in self.town.houses[0].view.record.endings:
            self.come_back(name, body.incarnation)
        elif life not in self.town.holders and life not in self.truth.never:
            self.town.later(0.05, lambda: self.town.study(body))

    def come_back(self, name: str, incarnation: int) -> None:
        """The process has noticed that a world left it out."""
        body = self.town.bodies[name]
        if self.life(name) != (name, incarnation) or not body.beats:
            return
        self.truth.alive.discard((name, incarnation))
        self.truth.gone.add((name, incarnation))
        self.town.learn = LEARN[self.next_incarnation % len(LEARN)]
        number = max(self.next_incarnation, incarnation + 1)
        self.town.again(name, incarnation=number, has_state_of=3)
        self.next_incarnation = number
        self.begun((name, number))

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
        """It leaves; out of a ring only when another one that has the state can take its slots."""
        life = self.life(name)
        assert life is not None
        inside = self.town.lives_of(self.town.world)
        if life in inside and not (self.town.teachers() - {life} - self.leaving()):
            self.town.leaving(name)
            return
        self.truth.polite.add(life)
        self.lose(name)
        self.town.leaving(name)
        self.town.idle(name)
        self.town.bodies[name].beats = False

    def leaving(self) -> set[Life]:
        return {w.life for w in self.town.houses[0].view.record.workers.values() if w.leaving}

    def drain(self, name: str) -> None:
        self.town.drain(name)
        self.town.leaving(name)

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

    def unheard(self, seconds: float) -> None:
        """What the services publish is lost for a while."""
        self.town.lost = True
        self.town.later(seconds, lambda: setattr(self.town, "lost", False))

    def service_restarts(self) -> None:
        anew = self.town.replay()
        assert anew.record == self.town.houses[0].view.record, "the log alone gives the same record"
        self.town.houses[0] = House(View("job", anew.proposer, anew.record, anew.sight))

    def service_forgets(self) -> None:
        """Started anew, it knows what the log says and has heard no heartbeat."""
        self.town.houses[0] = House(self.town.replay())

    # ------------------------------------------------------------------------------------------ what must hold

    def say(self, event: Event, id_: str = "", expect_last: int | None = None) -> bool:
        before = self.town.worlds[-1] if self.town.worlds else None
        teachers = self.town.teachers() & self.truth.alive
        if not self._say(event, id_, expect_last):
            return False
        self.shards = shards.see(self.shards, event, len(self.town.log), "")
        if isinstance(event, WorldChanged):
            self.look_at(event, before, teachers)
        return True

    def look_at(self, world: WorldChanged, before: WorldChanged | None, teachers: set[Life]) -> None:
        """Look at a world that was just appended; `teachers`: who could go on when it was."""
        now = self.town.lives_of(world)
        old = self.town.lives_of(before) if before else set()
        record = self.town.houses[0].view.record
        newest = {life for life in now if (w := record.workers.get(life[0])) and w.life == life}
        current = {life for life in newest if record.workers[life[0]].current}
        assert current == newest & self.shards.current, "both services know the same of the state"
        if world.planned:
            assert before is not None
            assert before.status == world.status == "running"
            assert old - now <= self.truth.polite, "planned, though somebody was lost"
        if world.status == "running" and before is not None:
            if before.status == "running":
                self.look_at_change(world, before, teachers)
            sight = self.town.houses[0].view.sight
            able = (self.town.holders & self.truth.alive) - self.truth.doubt - self.leaving()
            ready = {life for life in able if life[0] not in sight.disconnected and life not in record.endings}
            assert not ready or now & able, f"the run begins anew, though {ready} have the state"
        for name, incarnation in sorted(old - now):
            if (name, incarnation) in self.truth.alive:
                self.town.later(COMES_BACK, lambda n=name, i=incarnation: self.come_back(n, i))

    def look_at_change(self, world: WorldChanged, before: WorldChanged, teachers: set[Life]) -> None:
        now, old = self.town.lives_of(world), self.town.lives_of(before)
        healthy = teachers - self.truth.doubt
        if healthy:
            assert now & teachers, f"the state is lost, though {healthy} have it"
            unlearned = now - old - self.town.holders
            enough = {m.node for m in world.members if (m.worker, m.incarnation) not in unlearned}
            # a service that lags behind may not know yet that others have caught up
            assert not unlearned or self.town.lag or len(enough) < self.town.houses[0].view.record.spec.min_nodes, (
                f"{unlearned} came in before they had caught up"
            )
        if [(m.worker, m.incarnation, m.role) for m in world.members] == [
            (m.worker, m.incarnation, m.role) for m in before.members
        ]:
            assert "broke" in world.reason, "a world for nothing"

    def check(self) -> None:
        """Look at the whole history once nothing has happened for a while."""
        self.check_sequence()
        town, truth = self.town, self.truth
        record = town.houses[0].view.record
        now = town.lives_of(town.world)
        assert not now & truth.gone - truth.doubt, f"still a member though gone: {now & truth.gone}"
        assert not [e for _, e, _ in town.log if isinstance(e, JobFinished)]
        going = {w.life for w in record.workers.values() if record.is_leaving(w.member("active"))}
        expected = truth.alive - going
        if town.world.status == "running" and record.teaches():
            expected -= truth.never - now
        assert expected <= now, f"alive and not let in: {expected - now}"
        spec = record.spec
        assert spec is not None
        if len({record.workers[name].node for name, _ in expected}) >= spec.min_nodes:
            assert town.world.status == "running", f"paused, though {expected} are there: {town.world.awaiting}"
        assert town.replay().record == record

    def end(self) -> None:
        """All members come to the end of the run."""
        town = self.town
        if town.world.status != "running":
            return
        for i, name in enumerate(town.members):
            if self.is_alive(name):
                town.later(0.01 * i, lambda name=name: town.finished(name, 10))
        town.run(5.0)
        assert town.end is not None
        assert town.end.outcome == "completed"
        assert town.world.status == "finished"

    def check_sequence(self) -> None:
        worlds = self.town.worlds
        assert [w.generation for w in worlds] == list(range(1, len(worlds) + 1)), "one sequence, no gap"
        removed: list[Life] = []
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
                reordered = (
                    "broke repeatedly" in world.reason or not before.members or "the ring begins" in world.reason
                )
                actives = [(m.worker, m.incarnation) for m in before.members if m.role == "active"]
                stay = [life for life in lives if life in actives]
                if not reordered and before.status == "running":
                    assert stay == [life for life in actives if life in lives], "survivors keep their relative order"
            assert world.reason
            before = world
        assert len(removed) == len(set(removed)), "every life is taken out once at most"
        healthy = set(removed) - self.truth.gone - self.truth.doubt
        assert not healthy, f"a healthy worker was evicted: {healthy}"
