"""Ledger records on their way to the log: all workers keep those not known to be stored, the owner of slot 0 publishes.

If it dies, the next owner of slot 0 publishes again from the last step that the ring knows to be stored: a record may
appear twice in the log, never not at all.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

from reknit.core import wire
from reknit.core.events import StepsCommitted

from .ports import Outlet
from .ring.resend import Committed, pack, unpack

_EVERY = 1.0
_AT_MOST = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One committed step and its global mean loss."""

    of: Committed
    loss: float | None


class Pending:
    """Records of committed steps that are not known to be in the log.

    Args:
        run: the run's id.
        slots: V.
        outlet: where records go.
        changed: called (any thread) when `stored` has grown.
    """

    def __init__(self, run: str, slots: int, outlet: Outlet, changed: Callable[[], None]) -> None:
        self.stored = -1
        self._run = run
        self._slots = slots
        self._outlet = outlet
        self._changed = changed
        self._records: list[Record] = []
        self._sent = -1
        self._last = time.monotonic()
        self._lock = threading.Lock()

    def add(self, record: Record, *, publish: bool) -> None:
        """Keep a record; the owner of slot 0 says `publish` and sends what is due."""
        with self._lock:
            self._records.append(record)
        if publish and (time.monotonic() - self._last >= _EVERY or len(self._records) >= _AT_MOST):
            self.flush()

    def known(self, stored: int) -> None:
        """The ring knows that records up to `stored` are in the log."""
        with self._lock:
            if stored > self.stored:
                self.stored = stored
                self._records = [r for r in self._records if r.of.step > stored]

    def rewind(self, step: int) -> None:
        """Records of `step` and later are void: the run goes on from an older state."""
        with self._lock:
            self._records = [r for r in self._records if r.of.step < step]
            self._sent = min(self._sent, step - 1)
            self.stored = min(self.stored, step - 1)

    def resend(self) -> None:
        """A new ring: what the owner before may or may not have stored is sent again."""
        with self._lock:
            self._sent = self.stored

    def export(self) -> bytes:
        """What a learner must know: the records that are not known to be stored."""
        with self._lock:
            return wire.pack([self.stored, [[pack(r.of), r.loss] for r in self._records]])

    def take_over(self, exported: bytes) -> None:
        """Take over the records of the member whose state was received."""
        stored, records = wire.unpack(exported)
        taken = [Record(unpack(of), loss) for of, loss in records]
        with self._lock:
            newer = [r for r in self._records if not taken or r.of.step > taken[-1].of.step]
            self.stored = max(self.stored, int(stored))
            self._records = [r for r in (*taken, *newer) if r.of.step > self.stored]

    def flush(self) -> None:
        """Send all records not sent yet, equal owners in one event."""
        with self._lock:
            due = [r for r in self._records if r.of.step > self._sent]
            if due:
                self._sent = due[-1].of.step
            self._last = time.monotonic()
        batch: list[Record] = []
        for record in due:
            if batch and not _joins(batch[-1], record):
                self._publish(batch)
                batch = []
            batch.append(record)
        if batch:
            self._publish(batch)

    @property
    def empty(self) -> bool:
        """True if every record is known to be stored."""
        with self._lock:
            return not self._records

    def _publish(self, batch: list[Record]) -> None:
        last = batch[-1]
        event = StepsCommitted(
            run=self._run,
            first=batch[0].of.step,
            last=last.of.step,
            generation=last.of.generation,
            ranges=last.of.owners,
            slots=self._slots,
            chains=tuple(r.of.chain for r in batch),
            loss=last.loss,
            computed_again=sum(r.of.computed_again for r in batch),
        )

        def stored() -> None:
            self.known(last.of.step)
            self._changed()

        self._outlet.store(event, stored)


def _joins(a: Record, b: Record) -> bool:
    x, y = a.of, b.of
    return (x.generation, x.owners, x.step + 1, 0) == (y.generation, y.owners, y.step, y.computed_again)
