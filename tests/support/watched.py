"""A job as the monitor sees it: a desk with a world, and heartbeats that a test bends."""

from __future__ import annotations

from typing import Any

from reknit.core.events import Alert, JobSubmitted, NodePulse, StepsCommitted, Terms, WorkerPulse
from reknit.core.plan import split
from reknit.core.status import Status
from reknit.services.monitor.decide import decide
from reknit.services.monitor.view import View
from support.desk import Desk
from support.history import member, registered, world

TERMS = Terms(slots=4, micro_batch=2, samples=800, epochs=10, seed=1)


class Watched(Desk[View]):
    """A run of some workers, one a node; `beat` lets seconds go on with heartbeats of all, but for what is bent."""

    def __init__(self, *workers: str, **spec: Any) -> None:
        super().__init__(decide, fresh())
        self.workers = list(workers)
        self.incarnations = dict.fromkeys(workers, 1)
        self.generation = 1
        self.step = 0
        self.free = 8 << 30
        self.misses: dict[str, tuple[str, ...]] = {}
        """Node -> nodes that it gets no answer from."""
        self.sick: set[str] = set()
        self.received: dict[str, tuple[int, int, int]] = {}
        """Node -> datagrams that it refused, nodes that they are of, nodes whose datagrams it opened."""
        self.publish(
            JobSubmitted(run="r1", script="t.py", max_nodes=len(workers), **spec),
            *(registered(w, TERMS) for w in workers),
        )
        self.publish(world(1, *(member(w) for w in workers)))
        self.tick(0.25)

    def beat(
        self,
        seconds: float,
        *,
        silent: tuple[str, ...] = (),
        steps: int = 1,
        commit: bool = True,
        **bent: dict[str, Any],
    ) -> None:
        """`bent`: field of the heartbeat -> worker -> value; `silent`: workers and nodes that are not heard."""
        for _ in range(int(seconds * 4)):
            self.tick(0.25)
            for worker in self.workers:
                if worker not in silent:
                    self.pulse(self._pulse(worker, {f: by[worker] for f, by in bent.items() if worker in by}))
                node = member(worker).node
                refused, refused_of, opened_of = self.received.get(node, (0, 0, len(self.workers) - 1))
                if node not in silent:
                    self.pulse(
                        NodePulse(
                            node=node,
                            workers={worker: "S"},
                            memory_free=self.free,
                            silent=self.misses.get(node, ()),
                            sick=node in self.sick,
                            refused=refused,
                            refused_of=refused_of,
                            opened_of=opened_of,
                        )
                    )
            if steps:
                if commit:
                    self.commit(self.step, self.step + steps - 1)
                self.step += steps

    def _pulse(self, worker: str, bent: dict[str, Any]) -> WorkerPulse:
        usual: dict[str, Any] = {
            "worker": worker,
            "incarnation": self.incarnations[worker],
            "generation": self.generation,
            "step": self.step,
            "committed": self.step,
            "phase": "compute",
            "in_phase": 0.02,
            "compute_seconds": 0.05,
            "slots": 2,
            "rss": 500 << 20,
            "loss": 0.5,
            "rate": 100.0,
            "step_seconds": 0.1,
            "steps_in_all": 1000,
            "current": True,
        }
        return WorkerPulse(**(usual | bent))

    def commit(self, first: int, last: int, loss: float | None = 0.5) -> None:
        self.publish(
            StepsCommitted(
                run="r1",
                first=first,
                last=last,
                generation=self.generation,
                ranges=split(4, self.workers),
                slots=4,
                loss=loss,
            )
        )

    def change(self, *workers: str, **more: Any) -> None:
        """A new world of these workers."""
        self.generation += 1
        self.workers = list(workers)
        for worker in workers:
            self.incarnations.setdefault(worker, 1)
        members = [member(w, self.incarnations[w]) for w in workers]
        self.publish(world(self.generation, *members, **more))

    def restart_monitor(self) -> None:
        """Kill the monitor and start it again."""
        self.restart(fresh())

    def told(self, least: str = "info") -> list[tuple[str, str, str]]:
        """What is on the log: (alert, subject, state) of at least this severity."""
        order = ("info", "warning", "critical")
        return [
            (a.alert, a.subject, a.state) for a in self.events(Alert) if order.index(a.severity) >= order.index(least)
        ]

    def alert(self, name: str) -> Alert:
        return next(a for a in reversed(self.events(Alert)) if a.alert == name and a.state == "raised")


def fresh() -> View:
    return View(Status("j"))
