"""Twin of a worker: registers, hears worlds, beats, learns what it misses, comes back when it was left out.

Its agent (`node`) starts it, calls `beat` four times a second, and says how it ended.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

from reknit.core.events import (
    RingBroken,
    Terms,
    WorkerCaughtUp,
    WorkerPulse,
    WorkerRefused,
    WorkerRegistered,
    WorldChanged,
)

from .broker import Entry
from .link import Link
from .training import STEP, Training

if TYPE_CHECKING:
    from .node import Node

TERMS = Terms(slots=1, micro_batch=1, samples=1 << 40, epochs=1, seed=0)
KINDS = ("world.changed", "world.refused")
LEARN = (0.2, 0.6)
"""Seconds that a newcomer learns."""
_ASK_AGAIN = 0.2

Phase = Literal["starting", "compute", "reduce", "mend", "wait", "learn", "user", "evaluate", "finish"]


class Worker:
    """One process of the user's script.

    Attributes:
        name: its id.
        incarnation: which life.
        address: where its ring listener is.
        pid: its process's number on its node.
        lives: the process exists.
        worlds: generations that it has heard, in order.
        refused: why it was not let in, empty if it was.
    """

    def __init__(self, node: Node, name: str, incarnation: int, address: str, chance: random.Random) -> None:
        self._node = node
        self._training: Training = node.training
        self._clock = node.clock
        self._random = chance
        self.name = name
        self.incarnation = incarnation
        self.address = address
        self.pid = 0
        self.lives = True
        self.registered = False
        self.worlds: list[int] = []
        self.refused = ""
        self._world: WorldChanged | None = None
        self._inside = False
        self._times = 0
        self.link = Link(
            node.broker,
            chance,
            host=node.host,
            name=name,
            runs=lambda: self.lives and node.running,
            kinds=KINDS,
            on_entry=self._on_entry,
        )

    @property
    def life(self) -> tuple[str, int]:
        """Id and incarnation."""
        return self.name, self.incarnation

    def start(self, *, at_once: bool = False) -> None:
        """The process is up: model built, address bound; `at_once`: and connected already."""
        self.link.open(at_once=at_once)
        self.register()

    def end(self, *, reset: bool) -> None:
        """The process is gone."""
        self.lives = False
        self.link.end(reset=reset)

    def register(self) -> None:
        """Ask to be let in, with what state there is."""
        if not self.lives:
            return
        self.registered = True
        self._times += 1
        held = self._training.step - 1 if self._times > 1 else -1
        event = WorkerRegistered(
            worker=self.name,
            incarnation=self.incarnation,
            node=self._node.name,
            run=self._node.run,
            pid=self.pid,
            address=self.address,
            terms=TERMS,
            has_state_of=held,
            client_id=self.link.client_id,
        )
        self.link.post(event, f"registered/{self.name}/{self.incarnation}/{self._times}")
        self._learn_soon()

    # ---------------------------------------------------------------------------------------------------- its worlds

    def _on_entry(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, WorldChanged):
            self.worlds.append(event.generation)
            self._training.heard[event.generation] = self._clock.now
            self._world = event
            inside = any(m.worker == self.name and m.incarnation == self.incarnation for m in event.members)
            left_out = (self._inside and not inside) or (not inside and self.name in event.removed)
            self._inside = inside
            if left_out and event.status != "finished":
                self._clock.after(0.1 + 0.2 * self._random.random(), self._come_back, event.generation)
        elif isinstance(event, WorkerRefused) and (event.worker, event.incarnation) == self.life:
            self.refused = event.reason

    def _come_back(self, generation: int) -> None:
        if self.lives and not self._inside and self._world is not None and self._world.generation >= generation:
            self.register()

    def _learn_soon(self) -> None:
        self._clock.after(LEARN[0] + (LEARN[1] - LEARN[0]) * self._random.random(), self._learn, self._times)

    def _learn(self, times: int) -> None:
        """Have the state, if somebody can teach it; else look again."""
        if not self.lives or times != self._times or self.life in self._training.holders:
            return
        if not self._node.running or not self._training.teaches:
            self._clock.after(_ASK_AGAIN, self._learn, times)
            return
        self._training.holders.add(self.life)
        world = self._training.world
        event = WorkerCaughtUp(
            worker=self.name,
            incarnation=self.incarnation,
            generation=world.generation if world is not None else 0,
            step=self._training.step,
        )
        self.link.post(event, f"caught_up/{self.name}/{self.incarnation}/{self._times}")

    def lost_peer(self, peer: str, side: Literal["previous", "next"]) -> None:
        """A ring link was reset by the other end's kernel."""
        if not self.lives or not self._node.running or self._world is None or not self._inside:
            return
        generation = self._world.generation
        event = RingBroken(
            worker=self.name,
            incarnation=self.incarnation,
            generation=generation,
            step=self._training.step,
            peer=peer,
            side=side,
            error="connection reset",
        )
        self.link.post(event, f"broken/{self.name}/{self.incarnation}/{generation}/{peer}")

    # ---------------------------------------------------------------------------------------------------- heartbeats

    def beat(self) -> None:
        """Send a heartbeat."""
        if not self.lives or not self.link.client_id:
            return
        phase, in_phase = self._phase()
        step = self._training.step
        pulse = WorkerPulse(
            worker=self.name,
            incarnation=self.incarnation,
            generation=self._world.generation if self._world is not None else 0,
            step=step,
            committed=step,
            phase=phase,
            in_phase=in_phase,
            step_seconds=STEP,
            current=self.life in self._training.holders,
        )
        self.link.pulse(pulse)

    def _phase(self) -> tuple[Phase, float]:
        if not self.registered:
            return "starting", 0.0
        if not self._inside or self._world is None or self._world.status != "running":
            return ("wait" if self.life in self._training.holders else "learn"), 0.0
        halted = self._training.halted
        return ("compute", 0.0) if halted is None else ("reduce", self._clock.now - halted)
