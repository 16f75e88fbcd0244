"""Histories drawn from a seed: what happens, to whom, in which order, and whether the next thing waits for calm.

`draw` is pure: the same seed gives the same acts. When exactly an act falls into a step is the machine's business, so a
seed that fails is played again as it is, more than once if need be.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from histories import History
from job import NAME, wait_for
from stage import WITHIN, DidNotHappen, Stage

from reknit.core.events import (
    CheckpointCommitted,
    CheckpointRestored,
    DrainAsked,
    Member,
    StepsCommitted,
)

MOST = 5
"""Workers at most."""
PACE = 0.05
SERVICES = ("membership", "shards", "checkpoint", "monitor")
What = Literal["kill", "freeze", "join", "drain", "scale", "broker", "service", "restore"]
WEIGHTS: dict[What, int] = {
    "kill": 5,
    "freeze": 1,
    "join": 3,
    "drain": 2,
    "scale": 2,
    "broker": 1,
    "service": 2,
    "restore": 1,
}


@dataclass(frozen=True)
class Act:
    """One thing that happens.

    Attributes:
        steps: steps that are committed before it.
        pick: 0 to 1, which of those who are there it happens to.
        workers: how many there shall be afterwards.
        hurry: the next act does not wait until all are at work again.
    """

    what: What
    steps: int
    pick: float
    workers: int
    hurry: bool = False

    def __str__(self) -> str:
        return f"{self.what} ({self.workers} workers then{', no wait' if self.hurry else ''})"


@dataclass(frozen=True)
class Plan:
    """A whole history."""

    workers: int
    acts: tuple[Act, ...]

    def __str__(self) -> str:
        return f"{self.workers} workers; {', '.join(map(str, self.acts))}"


def draw(seed: int) -> Plan:
    """Return the history of a seed."""
    chance = random.Random(seed)
    workers = size = chance.randint(1, 4)
    acts: list[Act] = []
    for _ in range(chance.randint(2, 5)):
        possible = [what for what in WEIGHTS if _possible(what, size)]
        what = chance.choices(possible, [WEIGHTS[one] for one in possible])[0]
        size = _size_after(what, size, chance)
        hurry = what in {"kill", "join", "drain", "scale", "service"} and chance.random() < 0.3
        acts.append(Act(what, chance.randint(0, 12), chance.random(), size, hurry))
    return Plan(workers, tuple(acts))


def _possible(what: What, size: int) -> bool:
    if what in {"kill", "freeze", "drain"}:
        return size > 1  # somebody must be left who has the state
    return size < MOST if what == "join" else True


def _size_after(what: What, size: int, chance: random.Random) -> int:
    if what == "scale":
        return chance.choice([n for n in range(1, MOST) if n != size])
    return size + {"join": 1, "drain": -1}.get(what, 0)


def history(seed: int) -> History:
    """Return the history of a seed, ready to be played. It is played once: what it cannot bear is a failure."""
    plan = draw(seed)
    return History(
        f"seed {seed}: {plan}",
        plan.workers,
        plot=lambda stage: perform(plan, stage),
        flags=("--checkpoint-every-steps", "20", "--max-restarts", "1000000"),
        pace=PACE,
        tries=1,
    )


def perform(plan: Plan, stage: Stage) -> None:
    """Let everything happen; each act is followed by a proof that it did.

    Raises:
        NotInTime: the job does not come to what must follow.
    """
    stage.trains(plan.workers)
    proofs: list[Callable[[], object]] = []
    for act in plan.acts:
        _steps(stage, act.steps)
        proofs.append(_ACTS[act.what](stage, act))
        stage.happened.append(act.what)
        if act.hurry and act is not plan.acts[-1]:
            continue
        for proof in proofs:
            proof()
        proofs.clear()
        stage.trains(act.workers)


def _steps(stage: Stage, count: int) -> None:
    """Wait until so many more steps are committed."""
    last = stage.log.of(StepsCommitted)[-1].last
    wait_for(f"{count} steps", lambda: stage.log.of(StepsCommitted)[-1].last >= last + count, WITHIN)


def _picked(stage: Stage, act: Act) -> Member:
    """One of the members that live."""
    there = wait_for("a living member", lambda: [m for m in stage.world.members if _lives(m)] or None, WITHIN)
    return there[min(int(act.pick * len(there)), len(there) - 1)]


def _lives(member: Member) -> bool:
    try:
        os.kill(member.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _gone(stage: Stage, member: Member) -> Callable[[], object]:
    """Proof that a member was taken out of the world."""

    def look() -> bool:
        return all((m.worker, m.incarnation) != (member.worker, member.incarnation) for m in stage.world.members)

    return lambda: wait_for(f"the world without {member.worker}", look, WITHIN)


def _kill(stage: Stage, act: Act) -> Callable[[], object]:
    member = _picked(stage, act)
    stage.kill(member)
    return _gone(stage, member)


def _freeze(stage: Stage, act: Act) -> Callable[[], object]:
    member = _picked(stage, act)
    os.kill(member.pid, signal.SIGSTOP)
    try:
        _gone(stage, member)()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGCONT)
    return _nothing


def _scale(stage: Stage, act: Act) -> Callable[[], object]:
    stage.ask_for(act.workers)
    return _nothing


def _drain(stage: Stage, act: Act) -> Callable[[], object]:
    member = _picked(stage, act)
    stage.bus.publish(NAME, DrainAsked(target=member.worker, reason="benchmark"))
    return _gone(stage, member)


def _broker(stage: Stage, _act: Act) -> Callable[[], object]:
    return _killed_part(stage, "broker")


def _service(stage: Stage, act: Act) -> Callable[[], object]:
    return _killed_part(stage, SERVICES[int(act.pick * len(SERVICES))])


def _killed_part(stage: Stage, name: str) -> Callable[[], object]:
    pid = stage.kill_part(name)

    def back() -> bool:
        return any(mark.what == name and mark.pid != pid and mark.alive for mark in stage.job.processes())

    return lambda: wait_for(f"another {name}", back, WITHIN)


def _restore(stage: Stage, act: Act) -> Callable[[], object]:
    """Kill all at once; a checkpoint is there."""
    wait_for("a checkpoint", lambda: stage.log.of(CheckpointCommitted), WITHIN)
    known = len(stage.log.of(CheckpointRestored))
    for member in stage.trains(act.workers).members:
        stage.kill(member)
    restored = wait_for("the restored state", lambda: stage.log.of(CheckpointRestored)[known:], WITHIN)
    if not restored[0].checkpoint:
        raise DidNotHappen("there was a checkpoint, but the run went on from step 0")
    return _nothing


def _nothing() -> None:
    """The act itself has waited for its proof, or the number of workers that are at work afterwards is the proof."""


_ACTS: dict[What, Callable[[Stage, Act], Callable[[], object]]] = {
    "kill": _kill,
    "freeze": _freeze,
    "join": _scale,
    "drain": _drain,
    "scale": _scale,
    "broker": _broker,
    "service": _service,
    "restore": _restore,
}
