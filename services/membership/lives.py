"""Lives of workers, folded from the log: forked, registered, refused, leaving, finished, failed, gone.

A *life* is a worker id with its incarnation; who registers is let in or not by `registration`. `FOLDS` maps each worker
event to the function that folds it; `record` dispatches to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from reknit.core.events import (
    Event,
    Terms,
    WorkerCaughtUp,
    WorkerDying,
    WorkerExited,
    WorkerFailed,
    WorkerFinished,
    WorkerLeaving,
    WorkerRefused,
    WorkerRegistered,
    WorkerStarted,
    WorkerStuck,
    WorkerUnreachable,
)

from . import damping
from .evidence import observe
from .life import alive, change, end, found, put
from .registration import refused, registered
from .view import Ending, Failure, Life, Node, Record, Started, Worker

_KEPT_FAILURES = 256
_RUNS = frozenset("RSI")
"""Kernel process states of a process that runs or could: running, sleeping, idle."""


def _started(record: Record, event: WorkerStarted, _seq: int) -> Record:
    if not record.open:
        return record
    record = _ended_with_their_agent(record, event)
    known = record.workers.get(event.worker)
    older = known is not None and known.node == event.node and known.incarnation < event.incarnation
    if known is not None and older and known.life not in record.endings:
        detail = f"its agent started it anew (pid {event.pid})"
        record = end(record, known.life, Ending("died", observe("join", event.worker, event.node, detail), known.node))
    started = Started(event.worker, event.incarnation, event.node)
    record = found(record, event.node)
    return dataclasses.replace(
        record, started=put(record.started, event.worker, started), drains=record.drains - {event.worker}
    )


def _ended_with_their_agent(record: Record, event: WorkerStarted) -> Record:
    """An agent that starts workers was alone in its name: whoever an agent before it started went with that one.

    Its own may have registered before its `node.joined` was stored: theirs are later incarnations.
    """
    node = record.nodes.get(event.node)
    if node is None:
        return record
    for known in record.workers.values():
        earlier = known.seq < node.seq and known.incarnation < event.incarnation
        if known.node == event.node and earlier and known.life not in record.endings:
            evidence = observe("join", known.worker, event.node, f"the agent of {event.node} was started anew")
            record = end(record, known.life, Ending("died", evidence, known.node))
    return record


def _of_this_run(record: Record, life: Life) -> bool:
    """True if the process was forked or let in during this run; late news of an earlier run's processes is not ours."""
    forked, known = record.started.get(life[0]), record.workers.get(life[0])
    return (
        life in record.endings
        or (forked is not None and forked.incarnation == life[1])
        or (known is not None and known.life == life)
    )


def _life_of(record: Record, event: WorkerDying | WorkerExited) -> Life:
    """The life that ended; a process that came back after an eviction may have a newer one than its agent knows."""
    known = record.workers.get(event.worker)
    if (
        known is not None
        and (known.node, known.pid) == (event.node, event.pid)
        and known.incarnation > event.incarnation
    ):
        return known.life
    return event.worker, event.incarnation


def _dying(record: Record, event: WorkerDying, _seq: int) -> Record:
    """The process ends; what that means beyond its place in the ring is told by its exit."""
    if not record.open:
        return record
    ended = [alive(record, *_life_of(record, event)), *(_of_pid(record, event, *o) for o in event.others.items())]
    for worker in ended:
        if worker is not None:
            detail = f"the kernel ends its process (pid {worker.pid})"
            asked = event.expected or record.stop is not None or record.is_leaving(worker.member("active"))
            evidence = observe("dying", worker.worker, f"agent of {event.node}", detail)
            record = end(record, worker.life, Ending("left" if asked else "died", evidence, worker.node))
    return record


def _of_pid(record: Record, event: WorkerDying, name: str, pid: int) -> Worker | None:
    """The worker that is this very process, if its life goes on."""
    known = record.workers.get(name)
    if known is None or (known.node, known.pid) != (event.node, pid) or known.life in record.endings:
        return None
    return known


def _exited(record: Record, event: WorkerExited, _seq: int) -> Record:
    life = _life_of(record, event)
    before = record.endings.get(life)
    if not record.open or not _of_this_run(record, life) or (before is not None and before.code is not None):
        return record
    worker = alive(record, *life)
    known = record.workers.get(event.worker)
    registered = known is not None and known.life == life
    asked = record.stop is not None or (worker is not None and record.is_leaving(worker.member("active")))
    polite = (
        event.expected
        or asked
        or (event.code == 0 and not registered)  # a script that never joined the ring and ended well
        or (before is not None and before.how in ("finished", "left"))
    )
    if not polite:
        if not _at_the_door(record, event.node, life):
            record = dataclasses.replace(record, restarts=record.restarts + 1)
        if not any(_is_of(f, life) for f in record.failures):
            record = _fail(record, life, how_it_ended(event), event.last_step, registered=registered, log=event.log)
    if before is not None:
        return end(record, life, dataclasses.replace(before, code=event.code))
    evidence = observe("exit", event.worker, f"agent of {event.node}", f"its agent reaped it ({how_it_ended(event)})")
    return end(record, life, Ending("left" if polite else "died", evidence, event.node, code=event.code))


def _is_of(failure: Failure, life: Life) -> bool:
    return (failure.worker, failure.incarnation) == life


def _at_the_door(record: Record, node: str, life: Life) -> bool:
    """True if the life is in no world and its node is in quarantine: what it does there costs the job nothing."""
    damper = record.dampers.get(node)
    return damper is not None and record.clock < damper.quarantined_until and life not in record.lives


def how_it_ended(event: WorkerExited) -> str:
    """Say how a process ended: signal, memory, exit code, and its last words."""
    if event.code < 0 or event.signal:
        text = f"signal {-event.code}" if event.code < 0 else f"signal {event.signal}"
        return text + (", out of memory" if event.out_of_memory else "")
    text = f"exit code {event.code}"
    last = _last_words(event.stderr_tail)
    return f"{text}: {last[-1]}" if event.code and last else text


def _last_words(text: str) -> list[str]:
    """Lines of a traceback or of what was printed, without the hints that stand behind an error."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("hint:")]


def _failed(record: Record, event: WorkerFailed, _seq: int) -> Record:
    life = (event.worker, event.incarnation)
    before = record.endings.get(life)
    told = before is not None and (before.how != "died" or any(_is_of(f, life) for f in record.failures))
    if not record.open or told or not _of_this_run(record, life):
        return record
    lines = _last_words(event.traceback)
    text = lines[-1] if lines else event.error
    worker = alive(record, *life)
    record = _fail(record, life, text, event.step, registered=worker is not None, raised=True)
    evidence = observe("exit", event.worker, event.worker, f"its script raised {text}")
    if before is not None:  # that it is gone was seen first; this is why
        return end(record, life, dataclasses.replace(before, evidence=evidence))
    if worker is None:
        return record  # its exit follows and ends it
    return end(record, life, Ending("died", evidence, worker.node))


def _fail(
    record: Record, life: Life, text: str, step: int, *, registered: bool, raised: bool = False, log: str = ""
) -> Record:
    failure = Failure(
        worker=life[0],
        incarnation=life[1],
        text=text,
        step=step if step >= 0 else record.committed,
        raised=raised,
        registered=registered,
        log=log,
        committed=record.committed,
    )
    return dataclasses.replace(
        record,
        dampers=damping.failed(
            record.dampers, _node_of(record, life), record.clock, text, alone=one_node(record.nodes.values())
        ),
        failures=(*record.failures, failure)[-_KEPT_FAILURES:],
        began=record.began
        or step > record.base,  # the steps before it are committed; the ledger may still be on its way
    )


def one_node(nodes: Iterable[Node]) -> bool:
    """True if one node at most is there."""
    return sum(not node.left for node in nodes) <= 1


def _node_of(record: Record, life: Life) -> str:
    known, forked = record.workers.get(life[0]), record.started.get(life[0])
    return known.node if known is not None else forked.node if forked is not None else ""


def _leaving(record: Record, event: WorkerLeaving, _seq: int) -> Record:
    worker = alive(record, event.worker, event.incarnation)
    if worker is None:
        return record
    if event.idle:  # it has handed its slots over: the ring goes on without it
        detail = f"it left as asked: {event.reason}" if event.reason else "it left as asked"
        return end(record, worker.life, Ending("left", observe("leave", *(event.worker,) * 2, detail), worker.node))
    return change(record, worker, leaving=True)


def _caught_up(record: Record, event: WorkerCaughtUp, _seq: int) -> Record:
    worker = alive(record, event.worker, event.incarnation)
    return change(record, worker, current=True) if worker else record


def _finished(record: Record, event: WorkerFinished, _seq: int) -> Record:
    worker = alive(record, event.worker, event.incarnation)
    if worker is None or not record.open:
        return record
    asked = record.stop is not None or record.is_leaving(worker.member("active"))
    complete = not asked or (record.terms is not None and event.step >= steps_of(record.terms))
    evidence = observe("leave", event.worker, event.worker, f"it finished at step {event.step}")
    ending = Ending(
        "finished",
        evidence,
        worker.node,
        complete=complete,
        step=event.step,
        state_hash=event.state_hash,
        generation=event.generation,
    )
    return end(record, worker.life, ending)


def steps_of(terms: Terms) -> int:
    """Steps of the whole run."""
    batch = max(1, terms.slots * terms.micro_batch)
    return -(-terms.samples // batch) * terms.epochs


def _stuck(record: Record, event: WorkerStuck, _seq: int) -> Record:
    worker = alive(record, event.worker, event.incarnation)
    frozen = "" if event.state[:1] in _RUNS else event.state
    return change(record, worker, frozen=frozen) if worker else record


def _unreachable(record: Record, event: WorkerUnreachable, _seq: int) -> Record:
    worker = alive(record, event.worker, event.incarnation)
    if worker is None or worker.address != event.address:
        return record
    if not event.refused:
        return change(record, worker, unreachable=event.error or "no answer")
    detail = f"nobody listens at {event.address} any more"
    asked = record.stop is not None or record.is_leaving(worker.member("active"))
    evidence = observe("refused", event.worker, event.observer, detail)
    return end(record, worker.life, Ending("left" if asked else "died", evidence, worker.node))


FOLDS: Mapping[type[Event], Callable[[Record, Any, int], Record]] = {
    WorkerStarted: _started,
    WorkerRegistered: registered,
    WorkerRefused: refused,
    WorkerDying: _dying,
    WorkerExited: _exited,
    WorkerFailed: _failed,
    WorkerLeaving: _leaving,
    WorkerCaughtUp: _caught_up,
    WorkerFinished: _finished,
    WorkerStuck: _stuck,
    WorkerUnreachable: _unreachable,
}
