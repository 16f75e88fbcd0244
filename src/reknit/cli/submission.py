"""Whether a run begins a job, joins one as another node, or is refused. Pure: a decision over the job's log."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Protocol

from reknit.core.errors import Unauthorized, UsageError
from reknit.core.events import AgentJoined, AgentLeft, AnyEvent, JobFinished, JobSubmitted


class Stored(Protocol):
    """An event with its place in the log, as `core.bus.Received` is."""

    @property
    def event(self) -> AnyEvent:
        """The event."""

    @property
    def seq(self) -> int:
        """Its sequence in the log."""


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """What the log says about the newest run of a job.

    Attributes:
        spec: its submission, None if the job was never run.
        seq: sequence of that submission (0: none): what the next one must name as the last.
        finished: how it ended, None while it has not.
        nodes: nodes that joined it and did not leave.
    """

    spec: JobSubmitted | None = None
    seq: int = 0
    finished: JobFinished | None = None
    nodes: tuple[str, ...] = ()

    @property
    def unfinished(self) -> bool:
        """True if a run was begun and its end is not in the log."""
        return self.spec is not None and self.finished is None


def history_of(log: Iterable[Stored]) -> History:
    """Fold the `job` and `node` events of one job, in log order."""
    history = History()
    for stored in log:
        event = stored.event
        if isinstance(event, JobSubmitted):
            if history.unfinished and history.spec is not None and event.run != history.spec.run:
                continue  # a second submission while a run is alive does not count
            history = History(event, stored.seq, None, ())
        elif isinstance(event, JobFinished):
            if history.spec is not None and event.run == history.spec.run:
                history = dataclasses.replace(history, finished=event)
        elif isinstance(event, AgentJoined):
            nodes = (*(n for n in history.nodes if n != event.node), event.node)
            history = dataclasses.replace(history, nodes=nodes)
        elif isinstance(event, AgentLeft):
            history = dataclasses.replace(history, nodes=tuple(n for n in history.nodes if n != event.node))
    return history


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """Publish this submission, expecting `expect_last` as the last one."""

    spec: JobSubmitted
    expect_last: int


@dataclasses.dataclass(frozen=True, slots=True)
class Join:
    """Take part in this run as the node named; `interrupted`: nobody else does now."""

    spec: JobSubmitted
    node: str
    interrupted: bool


def decide(
    job: str, history: History, mine: JobSubmitted, node: str, *, node_asked: bool, alive: Collection[str]
) -> Begin | Join:
    """Decide what a run does.

    Args:
        job: name of the job.
        history: what the log says.
        mine: the submission that this run would make.
        node: name of this node.
        node_asked: True if the user gave that name; else another may be chosen.
        alive: nodes of the unfinished run whose launcher answers.

    Raises:
        Unauthorized: the job's secret is another one.
        UsageError: another job of that name runs, the node's name is taken, or the job takes no more nodes.
    """
    if not history.unfinished or history.spec is None:
        return Begin(mine, history.seq)
    spec = history.spec
    if spec.secret_check and spec.secret_check != mine.secret_check:
        raise Unauthorized(
            f"this node's secret is not the one of job {job!r}",
            hint="give all nodes the same --secret-file (the first node's is the file `secret` in the job's folder)",
        )
    different = first_difference(spec, mine)
    if different:
        state = f"runs on {', '.join(sorted(alive))}" if alive else "was interrupted and is not finished"
        raise UsageError(
            f"job {job!r} {state} with another {different}",
            hint=f"give another name with --job, or end it first: reknit stop --job {job}",
        )
    if node in alive:
        if node_asked:
            raise UsageError(
                f"node {node!r} takes part in job {job!r} already", hint="give this one another name with --node"
            )
        node = _free(node, alive)
    # the only node of a job has its spares itself
    more = -(-spec.spares // max(1, spec.nproc_per_node)) if spec.max_nodes > 1 else 0
    most = spec.max_nodes + more
    if len(alive) >= most:
        raise UsageError(
            f"job {job!r} takes no more nodes: {len(alive)} of {most} take part ({', '.join(sorted(alive))})",
            hint="submit it with a higher maximum: --nnodes MIN:MAX",
        )
    # where no node has joined yet, another launcher has begun the run a moment ago
    return Join(spec, node, interrupted=not alive and bool(history.nodes))


def first_difference(theirs: JobSubmitted, mine: JobSubmitted) -> str:
    """The first thing in which two submissions of one job differ, in words; empty if they fit."""
    if _base(theirs.script) != _base(mine.script):
        return f"script: {_base(theirs.script)} there, {_base(mine.script)} here"
    for i in range(max(len(theirs.args), len(mine.args))):
        there = theirs.args[i] if i < len(theirs.args) else None
        here = mine.args[i] if i < len(mine.args) else None
        if there != here:
            said = ["nothing" if arg is None else repr(arg) for arg in (there, here)]
            return f"argument {i + 1} of the script: {said[0]} there, {said[1]} here"
    if theirs.slots != mine.slots:
        return f"number of slots: {theirs.slots} there, {mine.slots} here"
    return ""


def _base(script: str) -> str:
    # the same script may lie elsewhere on another machine
    return script.rpartition("/")[2]


def _free(node: str, taken: Collection[str]) -> str:
    number = 2
    while f"{node}-{number}" in taken:
        number += 1
    return f"{node}-{number}"
