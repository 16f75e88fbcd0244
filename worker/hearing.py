"""What a worker hears of its job, on the bus thread: worlds, plans, checkpoints, stops, refusals, doubts."""

from __future__ import annotations

from reknit.core.bus import Received
from reknit.core.context import WorkerContext
from reknit.core.errors import RefusedByJob
from reknit.core.events import (
    ChaosAsked,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRequested,
    JobDoubted,
    JobFinished,
    JobStopAsked,
    ShardsPlanned,
    WorkerRefused,
    WorldChanged,
)

from .chaos import Chaos
from .engine import Engine
from .exchange import Exchange
from .ring.control import Plan
from .ring.vote import Diverged
from .saving import Saving

AREAS = ("world", "shards", "checkpoint", "job")
"""Areas of the log that a worker follows."""


class Hearing:
    """Hands each event to whom it concerns.

    Args:
        context: who we are, in which run.
        shared: what is shared with the main thread.
        engine: follows worlds and plans.
        saving: follows checkpoints.
        chaos: obeys faults on purpose.

    Attributes:
        members: workers of the newest running world, in ring order.
        members_of: generation of that world.
    """

    def __init__(self, context: WorkerContext, shared: Exchange, engine: Engine, saving: Saving, chaos: Chaos) -> None:
        self.members: tuple[str, ...] = ()
        self.members_of = 0
        self._context = context
        self._shared = shared
        self._engine = engine
        self._saving = saving
        self._chaos = chaos

    def hear(self, received: Received) -> None:
        """An event of the job."""
        event, engine, shared = received.event, self._engine, self._shared
        match event:
            case WorldChanged():
                if event.status == "running":
                    self.members, self.members_of = tuple(m.worker for m in event.members), event.generation
                engine.on_world(event, received.trace)
            case ShardsPlanned():
                engine.on_plan(Plan(event.generation, event.version, event.ranges))
            case CheckpointRequested() | CheckpointCommitted() | CheckpointFailed():
                self._saving.hear(event)
                if isinstance(event, CheckpointRequested) and not event.reassigned and engine.voice.stopping:
                    engine.voice.checkpoint_asked()
            case JobStopAsked():
                # of this run: only what is said from our start on is heard
                engine.voice.stop(awaits_checkpoint=bool(self._context.checkpoint_dir) and not event.at_once)
            case WorkerRefused():
                if (event.worker, event.incarnation) == (shared.worker, shared.incarnation):
                    shared.fail(RefusedByJob(event.reason))
            case ChaosAsked():
                self._chaos.hear(event)
            case JobDoubted():
                self._doubted(event)
            case JobFinished() if event.run == self._context.run and event.outcome != "completed":
                with shared.cv:
                    shared.left = shared.left or f"the run is over: {event.outcome}"
                    shared.cv.notify_all()
            case _:
                pass

    def _doubted(self, event: JobDoubted) -> None:
        """Somebody holds other weights for a step that a sole worker committed: whoever has that step gives up."""
        shared = self._shared
        if event.run == self._context.run and event.worker != self._context.worker and shared.step > event.step:
            hint = "nothing tells which of two is right: the run goes back to its last checkpoint"
            shared.fail(Diverged(f"{event.worker} says: {event.reason}", hint=hint))
