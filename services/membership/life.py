"""A life of a worker, a worker id with its incarnation, in the record: found, changed, ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from .view import Ending, Life, Record, Worker

K = TypeVar("K")
V = TypeVar("V")


def put(mapping: Mapping[K, V], key: K, value: V) -> dict[K, V]:
    """Return the mapping with one entry more or changed."""
    return {**mapping, key: value}


def end(record: Record, life: Life, ending: Ending) -> Record:
    """Return the record with one life ended."""
    return dataclasses.replace(record, endings=put(record.endings, life, ending))


def alive(record: Record, worker: str, incarnation: int) -> Worker | None:
    """Return the registered worker if this very life goes on."""
    known = record.workers.get(worker)
    if known is None or known.incarnation != incarnation or known.life in record.endings:
        return None
    return known


def change(record: Record, worker: Worker, **changes: Any) -> Record:
    """Return the record with one worker changed."""
    changed = dataclasses.replace(worker, **changes)
    return dataclasses.replace(record, workers=put(record.workers, worker.worker, changed))


def found(record: Record, name: str) -> Record:
    """A process of the node speaks: if its agent was held for gone, it was only cut off."""
    node = record.nodes.get(name)
    if node is None or not node.lost:
        return record
    return dataclasses.replace(record, nodes=put(record.nodes, name, dataclasses.replace(node, left=False, lost=False)))
