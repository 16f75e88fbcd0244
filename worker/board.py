"""Where workers put up what they have measured, and read what the others have: the job's log, or memory if alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import xxhash

from reknit.core import log
from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.events import (
    CheckpointRestored,
    EvaluationDiffers,
    EvaluationFinished,
    EvaluationPart,
    JobSubmitted,
)

from .sheet import Difference, Sheet, unpack

_log = log.get("evaluation")


class Board(Protocol):
    """What an evaluation needs.

    Attributes:
        cv: guards the sheets, notified when one changes.
        patience: seconds that a micro-batch may take after the last step once others have its scores; 0: no limit.
        connected: what is posted is put up at once, not some time later.
    """

    cv: threading.Condition
    patience: float

    @property
    def connected(self) -> bool:
        """See above."""

    def sheet(self, evaluation: str) -> Sheet:
        """The sheet of an evaluation, the same object each time; to be read under `cv`."""

    def heard(self, evaluation: str, worker: str) -> float:
        """Monotonic time of a worker's newest part, 0 for none."""

    def post(self, part: EvaluationPart) -> None:
        """Put up what was measured; it counts once it is on the sheet."""

    def finish(self, event: EvaluationFinished) -> None:
        """Say that an evaluation is over."""

    def forget(self, step: int) -> None:
        """Evaluations of states before this many steps are not asked for any more."""


class Alone:
    """A board for a world of one."""

    connected = True
    patience = 0.0

    def __init__(self) -> None:
        self.cv = threading.Condition()
        self._sheets: dict[str, Sheet] = {}

    def sheet(self, evaluation: str) -> Sheet:
        """See `Board.sheet`."""
        return self._sheets.setdefault(evaluation, Sheet())

    def heard(self, evaluation: str, worker: str) -> float:  # noqa: ARG002 - the protocol's signature
        """See `Board.heard`; there is nobody to hear."""
        return 0.0

    def post(self, part: EvaluationPart) -> None:
        """See `Board.post`."""
        with self.cv:
            self.sheet(part.evaluation).take(part.worker, part.generation, unpack(part.scores))

    def finish(self, event: EvaluationFinished) -> None:
        """See `Board.finish`."""

    def forget(self, step: int) -> None:  # noqa: ARG002 - the protocol's signature
        """See `Board.forget`."""
        self._sheets.clear()


class OnTheLog:
    """A board on the job's log. It is read from the beginning of the run, when the first evaluation begins.

    Args:
        bus: the worker's connection.
        job, run, worker: who we are.
        check: raises what ends the script, if it is to end while the broker is away.
    """

    def __init__(self, bus: BusThread, *, job: str, run: str, worker: str, check: Callable[[], None]) -> None:
        self.cv = threading.Condition()
        self.patience = 0.0
        self._bus, self._job, self._run, self._worker = bus, job, run, worker
        self._sheets: dict[str, Sheet] = {}
        self._steps: dict[str, int] = {}
        self._heard: dict[tuple[str, str], float] = {}
        self._finished: set[str] = set()
        self._restored: list[tuple[int, int]] = []
        self._least = 0
        bus.follow(self._hear, job=job, areas=("evaluation", "checkpoint"), from_seq=self._beginning(check))

    def _beginning(self, check: Callable[[], None]) -> int:
        """Sequence at which the run begins; the job's settings are there."""
        while True:
            try:
                told = self._bus.call(lambda bus: bus.backlog(job=self._job, areas=("job",)))
            except ControlPlaneUnreachable:
                check()
                continue
            for received in told:
                if isinstance(received.event, JobSubmitted) and received.event.run == self._run:
                    self.patience = received.event.stuck_after
                    return received.seq
            return 1

    @property
    def connected(self) -> bool:
        """See `Board.connected`."""
        return self._bus.connected

    def sheet(self, evaluation: str) -> Sheet:
        """See `Board.sheet`."""
        return self._sheets.setdefault(evaluation, Sheet())

    def heard(self, evaluation: str, worker: str) -> float:
        """See `Board.heard`."""
        return self._heard.get((evaluation, worker), 0.0)

    def post(self, part: EvaluationPart) -> None:
        """See `Board.post`: through the outbox, now or when the broker is back."""
        self._bus.post(self._job, part)

    def finish(self, event: EvaluationFinished) -> None:
        """See `Board.finish`; stored once, whoever says it."""
        with self.cv:
            if event.evaluation in self._finished:
                return
        # hashed: an id is a header, and the name in it is the user's
        digest = xxhash.xxh3_128_hexdigest(event.evaluation.encode("utf-8", "surrogatepass"))
        self._bus.post(self._job, event, id=f"finished/{event.run}/{digest}")

    def forget(self, step: int) -> None:
        """See `Board.forget`."""
        with self.cv:
            self._least = max(self._least, step)
            old = [e for e, of in self._steps.items() if of < self._least]
            for evaluation in old:
                del self._steps[evaluation]
                self._sheets.pop(evaluation, None)
            self._heard = {key: at for key, at in self._heard.items() if key[0] in self._steps}
            self._finished &= self._steps.keys()

    def _hear(self, received: Received) -> None:
        event = received.event
        if isinstance(event, CheckpointRestored) and event.run == self._run:
            self._void(event.generation, event.step)
        elif isinstance(event, EvaluationPart | EvaluationFinished) and event.run == self._run:
            with self.cv:
                if event.step >= self._least:
                    self._steps[event.evaluation] = event.step
                    self._take(event)
                    self.cv.notify_all()

    def _take(self, event: EvaluationPart | EvaluationFinished) -> None:
        if isinstance(event, EvaluationFinished):
            self._finished.add(event.evaluation)
            return
        if any(event.generation < generation and event.step >= step for generation, step in self._restored):
            return  # measured on a line that is lost
        self._heard[event.evaluation, event.worker] = time.monotonic()
        try:
            scores = unpack(event.scores)
        except ValueError as error:
            _log.error("scores skipped", evaluation=event.evaluation, worker=event.worker, reason=str(error))
            return
        differences = self.sheet(event.evaluation).take(event.worker, event.generation, scores)
        if differences and event.worker == self._worker:
            self._tell(event, differences)

    def _tell(self, part: EvaluationPart, differences: list[Difference]) -> None:
        found = differences[0]
        _log.error(
            "another worker measured other values",
            evaluation=part.evaluation,
            micro_batches=len(differences),
            worker=found.first,
            reason=f"micro-batch {found.number}: {found.detail}",
        )
        self._bus.post(
            self._job,
            EvaluationDiffers(
                run=part.run,
                evaluation=part.evaluation,
                step=part.step,
                micro_batches=tuple(d.number for d in differences),
                worker=part.worker,
                first=found.first,
                detail=found.detail,
            ),
        )

    def _void(self, generation: int, step: int) -> None:
        with self.cv:
            self._restored.append((generation, step))
            for evaluation, of in self._steps.items():
                if of >= step:
                    self.sheet(evaluation).void(generation)
            self.cv.notify_all()
