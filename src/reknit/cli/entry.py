"""How a launcher enters a job: it begins the run or joins it; two that start at once agree by compare-and-set."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reknit.core.bus import Bus
from reknit.core.errors import CheckpointError, StaleWorld, UsageError
from reknit.core.events import JobSubmitted
from reknit.core.headcount import spares_in_words, workers
from reknit.core.home import JobFolder
from reknit.core.lineage import Line, chosen, lines
from reknit.core.manifest import list_manifests

from . import checkpoint_folder, submission
from .look import answering
from .order import Order
from .output import Screen
from .submission import Begin

_AGAIN = 0.2
_PATIENCE = 3.0
"""Seconds after which it is said that another launcher is waited for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """The run that this launcher takes part in, and as which node."""

    spec: JobSubmitted
    node: str


async def enter(bus: Bus, order: Order, folder: JobFolder, claims: contextlib.ExitStack, screen: Screen) -> Entry:
    """Begin or join the job; the node's name is held by `claims` from now on.

    Raises:
        UsageError: another job of that name runs, the name of the node is taken, no more nodes are taken, or the run
            takes checkpoints and this node cannot write to their folder.
        Unauthorized: the job has another secret.
        ControlPlaneUnreachable: the broker went away.
    """
    began, said = time.monotonic(), False
    while True:
        history = submission.history_of(await bus.backlog(job=order.job, areas=["job", "node"]))
        others = await answering(bus, order.job, history.nodes) if history.unfinished else set()
        alive = others | folder.claimed()
        decision = submission.decide(
            order.job, history, order.spec, order.node, node_asked=order.node_asked, alive=alive
        )
        node = order.node if isinstance(decision, Begin) else decision.node
        if not claims.enter_context(folder.claim(node)):
            # another launcher of this machine has that name, for a run that begins or ends just now
            claims.close()
            if not said and time.monotonic() - began > _PATIENCE:
                screen.note(f"waiting for the launcher of node {node}: an earlier run of the job is just ending")
                said = True
            await asyncio.sleep(_AGAIN)
            continue
        if not isinstance(decision, Begin):
            warning = await asyncio.to_thread(saving_here, decision.spec, order.job)
            if decision.interrupted:
                run = decision.spec.run
                screen.note(f"job {order.job} was interrupted: going on with its run {run}", "yellow")
                if order.spec.resume and not decision.spec.resume:
                    screen.note(
                        "that run began anew, without --resume: only checkpoints of its own are used; to begin from an "
                        f"earlier run's: reknit stop --job {order.job}, then this command again",
                        "yellow",
                    )
            else:
                screen.note(f"node {node} joins job {order.job}")
            if warning:
                screen.note(warning, "yellow")
            return Entry(decision.spec, node)
        spec, told = beginning(decision.spec, order.job)
        try:
            await bus.publish(order.job, spec, id=spec.run, expect_last=decision.expect_last)
        except StaleWorld:
            claims.close()  # another node submitted first: join it
            continue
        screen.note(f"job {order.job}: {size(spec)}")
        if told:
            screen.note(told, "yellow")
        return Entry(spec, node)


def saving_here(spec: JobSubmitted, job: str) -> str:
    """See that a node that joins can write to the run's folder of checkpoints, and return a warning (empty: none).

    Args:
        spec: of the run that it joins.
        job: its name.

    Raises:
        UsageError: it cannot, and the run takes checkpoints while it trains: each of them would fail.
    """
    where = spec.checkpoint_dir
    fault = checkpoint_folder.fault_of(Path(where), job) if where else ""
    if not fault:
        return ""
    said = f"job {job} keeps its checkpoints in {where}, and this node cannot write there: {fault}"
    if spec.checkpoint_every_steps or spec.checkpoint_every_seconds:
        raise UsageError(said, hint="mount here what the other nodes have there; all nodes must see the same folder")
    return f"{said}; a polite stop will leave no last checkpoint"


def beginning(spec: JobSubmitted, job: str) -> tuple[JobSubmitted, str]:
    """Settle which line of checkpoints a run begins from, and say what a person should know of it (empty: nothing).

    Args:
        spec: the submission that is about to be made.
        job: its name.

    Returns:
        The submission, in which the run that it goes on from stands by name; and what to say.

    Raises:
        UsageError: it is open which run `--resume` means, or there is no checkpoint of the one that was named.
    """
    try:
        listed = [one for one in list_manifests(Path(spec.checkpoint_dir), job) if not one.foreign]
    except CheckpointError:
        return spec, ""  # whoever restores or writes there says it, with the reason
    manifests = [one.manifest for one in listed if one.manifest is not None]
    if not spec.resume:
        return spec, _passed_over(lines(manifests))
    line = chosen(job, manifests, spec.resume_run)
    skipped = "".join(f"; cannot be read: {one.problem}" for one in listed if one.manifest is None)
    if line is None:
        # if one is there that cannot be read, the workers refuse to begin
        return spec, f"no checkpoint of {job} in {spec.checkpoint_dir}: it begins at step 0" if not skipped else ""
    said = f"it goes on from {line}, checkpoint {line.newest.checkpoint}{skipped}"
    return msgspec.structs.replace(spec, resume_run=line.run), said


def _passed_over(standing: Sequence[Line]) -> str:
    """Say from where a run that begins anew could have gone on."""
    if not standing:
        return ""
    if len(standing) == 1:
        return (
            f"it begins at step 0; with --resume it would go on from the checkpoint of step {standing[0].newest.step}"
        )
    known = "; ".join(str(line) for line in standing)
    return f"it begins at step 0; with --resume-run RUN it would go on from an earlier run: {known}"


def workers_of(spec: JobSubmitted, nproc: int) -> int:
    """How many workers a node starts with: a job of one node has its spares there, else other nodes bring them."""
    return nproc + (spec.spares if spec.max_nodes == 1 else 0)


def size(spec: JobSubmitted) -> str:
    """How many workers a job has, and how many of them are spares, in words."""
    least, most = spec.min_nodes * spec.nproc_per_node, spec.max_nodes * spec.nproc_per_node
    active = min(most, spec.slots) if spec.slots else most
    said = workers(active) if least >= active else f"{least} to {workers(active)}"
    if spare := most + spec.spares - active:
        said += f" and {spares_in_words(spare)}"
    if active < most:
        said += f": a step has {spec.slots} slot{'' if spec.slots == 1 else 's'}"
    return said
