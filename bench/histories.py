"""The histories that are written out: what happens in a run, and the proof from its log that it did."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from job import NAME, wait_for
from stage import WITHIN, DidNotHappen, Stage

from reknit.core.events import (
    CheckpointCommitted,
    CheckpointRestored,
    JobScaled,
    Member,
    RingRecovered,
    StepsCommitted,
    WorkerCaughtUp,
    WorkerExited,
    WorkerRegistered,
    WorldChanged,
)

EPOCHS = 12
STEPS = 21
"""Steps of an epoch, see scripts/exact_net.py."""
PACE = 0.02
"""Seconds longer a micro-batch while a history waits for its event."""

TRIES = 3

Plot = Callable[[Stage], None]
Proof = Callable[[Stage], None]


@dataclass(frozen=True)
class History:
    """What happens in one run.

    Attributes:
        workers: at the beginning; 0: the script alone, without a launcher.
        plot: what is done in mid-run, None: nothing.
        proof: looks into the log after the end whether it really happened.
        die: `WORKER:STEP`, a worker that kills itself in the middle of that step.
        flags: more flags of `reknit run`.
        pace: seconds longer a micro-batch while the plot is not at its end.
        tries: how often it is played until its event falls into the right moment.
    """

    name: str
    workers: int
    plot: Plot | None = None
    proof: Proof | None = None
    die: str = ""
    flags: tuple[str, ...] = ()
    pace: float = PACE
    tries: int = TRIES


# ------------------------------------------------------------------------------------------------------------ plots


def _kill_twice(stage: Stage) -> None:
    """Kill a second worker the moment that the world without the first one is announced."""
    world = stage.trains(5)
    first, second = world.members[1], world.members[3]
    done = stage.at_event(WorldChanged, lambda w: first.worker in w.removed, lambda: stage.kill(second))
    stage.kill(first)
    wait_for("the second kill", done.is_set, WITHIN)
    wait_for("the second world", lambda: _removed(stage, second), WITHIN)
    stage.trains(5)


def _killed_twice(stage: Stage) -> None:
    deaths = [w for w in stage.log.of(WorldChanged) if w.removed and w.status == "running"]
    if len(deaths) < 2:
        raise DidNotHappen("both deaths became one change of the world")
    first, second = deaths[0], deaths[1]
    recovered = stage.log.places(RingRecovered, lambda e: e.generation == first.generation)
    seen = stage.log.places(WorldChanged, lambda e: e.generation == second.generation)
    if recovered and recovered[0] < seen[0]:
        raise DidNotHappen("the first rebuild was complete before the second death was known")
    stage.happened.append(
        f"{', '.join(first.removed)} died (world {first.generation}); {', '.join(second.removed)} died before that "
        f"world had completed a step (world {second.generation})"
    )


def _join_and_kill(stage: Stage) -> None:
    """Kill an old worker the moment that a joiner has registered."""
    victim = stage.trains(3).members[0]
    done = stage.at_event(WorkerRegistered, lambda _e: True, lambda: stage.kill(victim))
    stage.bus.publish(NAME, JobScaled(workers=4))
    wait_for("the kill", done.is_set, WITHIN)
    wait_for("the world without it", lambda: _removed(stage, victim), WITHIN)
    stage.trains(4)


def _joined_and_killed(stage: Stage) -> None:
    death = next((w for w in stage.log.of(WorldChanged) if w.removed and w.status == "running"), None)
    if death is None:
        raise DidNotHappen("no death")
    died = stage.log.places(WorldChanged, lambda e: e.generation == death.generation)[0]
    before = [e.worker for e in stage.log.of(WorkerRegistered)][:3]
    coming = [e.worker for e in stage.log.of(WorkerRegistered) if e.worker not in before]
    joiner = coming[0]
    registered = stage.log.places(WorkerRegistered, lambda e: e.worker == joiner)[0]
    caught_up = stage.log.places(WorkerCaughtUp, lambda e: e.worker == joiner)
    if not registered < died or not caught_up or caught_up[0] < died:
        raise DidNotHappen(f"{joiner} was not between its registration and its catching up when the death was known")
    stage.happened.append(f"{', '.join(death.removed)} died while {joiner} was receiving state")


def _scale_about(stage: Stage) -> None:
    stage.trains(1)
    for workers in (3, 2, 4):
        stage.scale(workers)


def _scaled_about(stage: Stage) -> None:
    sizes = [len(w.members) for w in stage.log.of(WorldChanged) if w.status == "running"]
    wanted = iter(sizes)
    if not all(size in wanted for size in (1, 3, 2, 4)):
        raise DidNotHappen(f"the worlds had {sizes} members")
    stage.happened.append(f"members of the worlds: {sizes}")


def _kill_three(stage: Stage) -> None:
    """Kill one after the other, each as soon as all are at work again."""
    for turn in range(3):
        world = stage.trains(3)
        victim = world.members[turn]
        stage.kill(victim)
        wait_for("the world without it", lambda v=victim: _removed(stage, v), WITHIN)  # type: ignore[misc]
    stage.trains(3)


def _kill_all(stage: Stage) -> None:
    """Kill all at once after a checkpoint: nobody has the state any more."""
    world = stage.trains(3)
    wait_for("a checkpoint", lambda: stage.log.of(CheckpointCommitted), WITHIN)
    steps = stage.log.of(StepsCommitted)[-1].last
    wait_for("more steps", lambda: stage.log.of(StepsCommitted)[-1].last > steps + 5, WITHIN)
    for member in world.members:
        stage.kill(member)
    wait_for("the restored state", lambda: stage.log.of(CheckpointRestored)[-1:], WITHIN)
    stage.trains(3)


def _restored(stage: Stage) -> None:
    found = [e for e in stage.log.of(CheckpointRestored) if e.checkpoint]
    if not found:
        raise DidNotHappen("no checkpoint was restored")
    stage.happened.append(f"all killed; restored the checkpoint of {found[0].step} steps")


def _freeze(stage: Stage) -> None:
    """Stop a worker until the others go on without it, then let it run again."""
    world = stage.trains(3)
    frozen = world.members[1]
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        wait_for("the world without it", lambda: _removed(stage, frozen), WITHIN)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen.pid, signal.SIGCONT)
    stage.trains(3)


def _frozen(stage: Stage) -> None:
    world = next(w for w in stage.log.of(WorldChanged) if w.removed)
    again = next((w for w in stage.log.of(WorldChanged) if set(w.added) & set(world.removed)), None)
    if again is None:
        raise DidNotHappen("the frozen worker never came back")
    before = {m.pid for w in stage.log.of(WorldChanged) for m in w.members if w.generation < world.generation}
    same = {m.pid for m in again.members} <= before
    stage.happened.append(f"{world.removed[0]} frozen and left out; came back as {'itself' if same else 'another'}")


def _kill_broker(stage: Stage) -> None:
    """Kill the broker, and a worker while it is away; then the membership service."""
    world = stage.trains(3)
    stage.kill(world.members[2])
    stage.kill_part("broker")
    wait_for("the world without it", lambda: _removed(stage, world.members[2]), WITHIN)
    stage.trains(3)
    stage.kill_part("membership")
    stage.kill(stage.world.members[0])
    wait_for("one more death", lambda: len([w for w in stage.log.of(WorldChanged) if w.removed]) >= 2, WITHIN)
    stage.trains(3)


def _deaths(count: int) -> Proof:
    def proof(stage: Stage) -> None:
        worlds = [w for w in stage.log.of(WorldChanged) if w.removed and w.status == "running"]
        again = sum(e.computed_again for e in stage.log.of(RingRecovered))
        killed = [e for e in stage.log.of(WorkerExited) if e.signal == "SIGKILL"]
        if len(worlds) < count or len(killed) < count:
            raise DidNotHappen(f"{len(killed)} of {count} deaths, {len(worlds)} changes of the world")
        if not again:
            raise DidNotHappen("no death was in mid-step: no slot was computed again")
        stage.happened.append(f"{len(killed)} killed, {again} slots of steps in flight computed by others")

    return proof


def _removed(stage: Stage, member: Member) -> bool:
    return any(member.worker in w.removed for w in stage.log.of(WorldChanged))


HISTORIES = (
    History("alone, no launcher", 0),
    History("1 worker", 1),
    History("2 workers", 2),
    History("3 workers", 3),
    History("5 workers", 5),
    History("3 workers, one killed in mid-step", 3, proof=_deaths(1), die=f"n0-1:{EPOCHS * STEPS // 2}"),
    History("3 workers, killed one after the other", 3, _kill_three, _deaths(3)),
    History("1 to 3 to 2 to 4 workers", 1, _scale_about, _scaled_about),
    History("5 workers, a kill during a rebuild", 5, _kill_twice, _killed_twice),
    History("3 workers, a join during a kill", 3, _join_and_kill, _joined_and_killed),
    History("3 workers, one frozen and back again", 3, _freeze, _frozen),
    History("3 workers, broker and membership killed with workers", 3, _kill_broker, _deaths(2)),
    History(
        "3 workers, all killed, from a checkpoint", 3, _kill_all, _restored, flags=("--checkpoint-every-steps", "20")
    ),
)
QUICK = (0, 1, 3, 5)
