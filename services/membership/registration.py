"""Who registers, and whether it is let in: lives that begin, come back, or are refused."""

from __future__ import annotations

import dataclasses

from reknit.core.events import WorkerRefused, WorkerRegistered

from . import damping
from .damping import Damper
from .evidence import observe
from .life import change, end, found, put
from .terms import arithmetic, essential
from .view import Ending, Record, Worker


def registered(record: Record, event: WorkerRegistered, seq: int) -> Record:
    """A worker registers: anew, once more, or it is not welcome."""
    life = (event.worker, event.incarnation)
    known = record.workers.get(event.worker)
    if record.spec is None or life in record.refusals:
        return record
    if known is not None and known.life == life and (known.pid, known.address) == (event.pid, event.address):
        return _again(record, known, event, seq)
    if life in record.endings:
        return record
    reason = _unwelcome(record, known, event)
    if reason:
        return dataclasses.replace(record, refusals=put(record.refusals, life, reason))
    if known is not None and known.life not in record.endings:
        detail = f"incarnation {event.incarnation} registered under its id"
        evidence = observe("join", event.worker, event.worker, detail)
        record = end(record, known.life, Ending("died", evidence, known.node))
    if known is not None and (known.node, known.pid) == (event.node, event.pid):
        record = _back(record, known)
    record = _note_arithmetic(_retire_address(record, event), event)
    worker = Worker(
        worker=event.worker,
        incarnation=event.incarnation,
        node=event.node,
        pid=event.pid,
        address=event.address,
        client_id=event.client_id,
        has_state_of=event.has_state_of,
        seq=seq,
    )
    return dataclasses.replace(
        record,
        terms=record.terms or event.terms,
        workers=put(record.workers, event.worker, worker),
        drains=record.drains - {event.worker},
    )


def _unwelcome(record: Record, known: Worker | None, event: WorkerRegistered) -> str:
    """Why this registration must not be let in; empty if it may."""
    if event.run != record.run:
        return f"it belongs to run {event.run}, the job is in run {record.run}"
    alive = known is not None and known.life not in record.endings
    if known is not None and alive and (event.incarnation <= known.incarnation or event.node != known.node):
        return (
            f"the id {event.worker} is taken by pid {known.pid} on {known.node} at {known.address} "
            f"(incarnation {known.incarnation})"
        )
    if record.terms is None:
        return ""
    strict = record.spec is None or record.spec.numerics == "strict"
    return essential(record.terms, event.terms) or (arithmetic(record.terms, event.terms) if strict else "")


def _note_arithmetic(record: Record, event: WorkerRegistered) -> Record:
    """One that is let in although it may compute other bits: the run is not exact with it."""
    difference = arithmetic(record.terms, event.terms) if record.terms is not None else ""
    if not difference:
        return record
    return dataclasses.replace(record, inexact=put(record.inexact, (event.worker, event.incarnation), difference))


def _again(record: Record, known: Worker, event: WorkerRegistered, seq: int) -> Record:
    """The same process registers once more: back after an eviction, or its connection is new."""
    ending = record.endings.get(known.life)
    if ending is None:
        return change(record, known, client_id=event.client_id)
    if ending.how != "evicted":
        return record
    endings = {life: e for life, e in record.endings.items() if life != known.life}
    return change(
        dataclasses.replace(_back(record, known), endings=endings),
        known,
        client_id=event.client_id,
        has_state_of=event.has_state_of,
        seq=seq,
        current=False,
        frozen="",
        unreachable="",
    )


def _back(record: Record, known: Worker) -> Record:
    """The process of this life is there again: if it was evicted, its node has flapped."""
    ending = record.endings.get(known.life)
    if ending is None or ending.how != "evicted":
        return record
    damper = damping.returned(record.dampers.get(known.node, Damper()), record.clock)
    return dataclasses.replace(found(record, known.node), dampers=put(record.dampers, known.node, damper))


def _retire_address(record: Record, event: WorkerRegistered) -> Record:
    """Whoever had the address before is gone: two processes cannot listen there."""
    for other in record.workers.values():
        if other.address == event.address and other.worker != event.worker and other.life not in record.endings:
            evidence = observe(
                "join", other.worker, event.worker, f"its address {other.address} is now {event.worker}'s"
            )
            record = end(record, other.life, Ending("died", evidence, other.node))
    return record


def refused(record: Record, event: WorkerRefused, _seq: int) -> Record:
    """A worker was told that it is not let in."""
    return dataclasses.replace(record, refused=record.refused | {(event.worker, event.incarnation)})
