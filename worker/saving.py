"""Checkpoints and copies for learners, as the session's main thread sees them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from reknit.core.errors import StateError
from reknit.core.events import (
    CheckpointCommitted,
    CheckpointEvent,
    CheckpointFailed,
    CheckpointHeld,
    CheckpointRequested,
    Event,
)
from reknit.core.layout import chunk_count
from reknit.core.manifest import INDEX_NUMBER

from .chunks import Writer, assign
from .copies import StateCopy, cover
from .digest import OptimizerDigest, WeightsDigest
from .exchange import Exchange
from .ring.resend import Committed
from .snapshot import Snapshot, Snapshotter
from .tracked import Tracked

HEIRS = 2
"""Workers, next to the first one, that tell of a copy of which they have nothing to write."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of the state that a checkpoint is written from.

    Attributes:
        snapshot: the bytes.
        writers: who holds it too.
        check: says what is wrong with it, empty if nothing is; asked before anything is written.
    """

    snapshot: Snapshot
    writers: tuple[str, ...]
    check: Callable[[], str]


class Saving:
    """Takes snapshots between two steps and has them written or sent.

    Args:
        worker: who we are.
        tracked: what to copy.
        shared: requests of learners come through it.
        job: name of the job.
        directory: folder of all jobs' checkpoints, "" if this run takes none.
        post: publishes an event.
        digests: of weights and optimizers, if the ring compares them: then a checkpoint is written only once the step
            that begins with its state was compared, and only if the copy is what was compared.

    Attributes:
        taken_at: step before which the newest checkpoint's state is copied, -1 if there is none.
    """

    def __init__(
        self,
        worker: str,
        tracked: Tracked,
        shared: Exchange,
        *,
        job: str,
        directory: str,
        post: Callable[[Event], None],
        digests: tuple[WeightsDigest, OptimizerDigest] | None = None,
    ) -> None:
        self.taken_at = -1
        self._digests = digests
        self._lock = threading.Lock()
        self._copied: dict[int, tuple[str, Snapshot, tuple[str, ...]]] = {}
        self._agreed: tuple[int, int, int] = (-1, 0, 0)
        self._worker = worker
        self._shared = shared
        self._post = post
        self._snapshotter = Snapshotter(tracked, warm=2)
        self._writer = (
            Writer(worker, job=job, checkpoint_dir=Path(directory), on_written=post, on_failed=post)
            if directory
            else None
        )
        self._held: dict[str, _Copy] = {}
        self._warm = False
        self._due: tuple[str, Committed] | None = None
        self._taken = ""

    def hear(self, event: CheckpointEvent) -> None:
        """An event of the checkpoint service (bus thread)."""
        if isinstance(event, CheckpointRequested):
            if event.reassigned:
                self._write_more(event)
            elif self._writer is not None:
                self._shared.ask_checkpoint(event.checkpoint, event.at_step)
        elif isinstance(event, CheckpointCommitted | CheckpointFailed):
            self._shared.checkpoint_settled(event.checkpoint)
            if self._writer is not None:
                self._writer.cancel(event.checkpoint)
            self._drop(event.checkpoint)

    def agreed(self, committed: Committed) -> None:
        """The step's control piece asks for a checkpoint after this step; it is taken at the next `begin`.

        Once an id: a worker that heard of the request late may have made the ring agree on it a second time.
        """
        checkpoint = committed.settled.checkpoint
        if checkpoint and checkpoint != self._taken:
            self._taken = checkpoint
            self._due = (checkpoint, committed)
            self.taken_at = committed.step + 1

    def begin(self, step: int) -> None:
        """The state before `step` is in place: take the checkpoint that is due."""
        if not self._warm and step > 0 and (self._writer is not None or self._shared.generation > 0):
            # from the first optimizer step on the state has its final size: touch the memory before it is needed
            self._warm = True
            if self._writer is not None:
                self._snapshotter.prepare()
            else:
                self._snapshotter.measure()
        if self._due is None or self._writer is None:
            return
        checkpoint, committed = self._due
        self._due = None
        if committed.step + 1 != step:
            return
        writers = [r.worker for r in committed.owners]
        if self._worker not in writers:
            return
        future = self._start(step, committed.chain, committed.generation, checkpoint)
        if future is not None:
            future.add_done_callback(lambda done: self._write(done, checkpoint, writers))

    def ready(self, parts: int) -> object:
        """A learner is about to ask for one of so many parts: touch its memory (any thread); kept as the value is."""
        return self._snapshotter.ready(parts)

    def copy_for_learners(self, step: int, chain: int, generation: int, ledger: bytes) -> None:
        """Copy what the learners that wait for the state before `step` have asked for, in one go."""
        wanted = self._shared.copies.begin(step)
        future = self._snapshotter.begin(
            step, chain=chain, generation=generation, which=lambda size: cover(wanted, size)
        )
        future.add_done_callback(lambda done: self._hand_out(done, ledger))

    def wait(self) -> None:
        """No copy is running any more: weights may change."""
        self._snapshotter.wait()

    def close(self, seconds: float) -> None:
        """Finish writing what was begun, within so many seconds."""
        if self._writer is not None:
            self._writer.close(seconds)

    def _start(self, step: int, chain: int, generation: int, checkpoint: str) -> Future[Snapshot] | None:
        try:
            return self._snapshotter.begin(step, chain=chain, generation=generation)
        except StateError as error:
            self._post(CheckpointFailed(checkpoint=checkpoint, reason=str(error), step=step, worker=self._worker))
            return None

    def _write(self, done: Future[Snapshot], checkpoint: str, writers: Sequence[str]) -> None:
        assert self._writer is not None
        error = done.exception()
        if error is not None:
            self._post(CheckpointFailed(checkpoint=checkpoint, reason=str(error), worker=self._worker))
            return
        snapshot = done.result()
        for older in [c for c in self._held if c != checkpoint]:
            self._drop(older)
        if self._digests is None:
            self._write_out(checkpoint, snapshot, tuple(writers))
            return
        with self._lock:
            self._copied[snapshot.step] = (checkpoint, snapshot, tuple(writers))
        self._write_compared()

    def compared(self, step: int, weights: int, state: int) -> None:
        """All that computed `step` had these digests of weights and optimizers (0: not compared) before it."""
        with self._lock:
            self._agreed = (step, weights, state)
        self._write_compared()

    def forget(self) -> None:
        """Another state was loaded: what was copied of the one before is worth nothing."""
        with self._lock:
            given_up, self._copied = list(self._copied.values()), {}
        for checkpoint, snapshot, _ in given_up:
            snapshot.release()
            self._fail(checkpoint, snapshot.step, "its state was not the run's")

    def _write_compared(self) -> None:
        """Write the checkpoint whose state was copied and compared (whichever thread comes second)."""
        with self._lock:
            step, weights, state = self._agreed
            due = self._copied.pop(step, None)
        if due is None:
            return
        checkpoint, snapshot, writers = due
        self._write_out(checkpoint, snapshot, writers, lambda: self._differs(snapshot, weights, state))

    def _differs(self, snapshot: Snapshot, weights: int, state: int) -> str:
        """What is wrong with a copy of the state, empty if nothing is (writer's thread)."""
        assert self._digests is not None
        of_weights, of_state = self._digests
        same = (not weights or of_weights.of(snapshot.layout, snapshot.memory) == weights) and (
            not state or of_state.of(snapshot.layout, snapshot.memory) == state
        )
        return "" if same else "its copy of the state is not what the workers agreed on: bad memory?"

    def _fail(self, checkpoint: str, step: int, why: str) -> None:
        reason = f"{self._worker}: {why}"
        self._post(CheckpointFailed(checkpoint=checkpoint, reason=reason, step=step, worker=self._worker))

    def _write_out(
        self, checkpoint: str, snapshot: Snapshot, writers: tuple[str, ...], check: Callable[[], str] = str
    ) -> None:
        assert self._writer is not None
        self._held[checkpoint] = _Copy(snapshot, writers, check)
        chunks = chunk_count(snapshot.layout.total, self._writer.chunk_bytes)
        mine = assign([INDEX_NUMBER, *range(chunks)], writers).get(self._worker, ())
        self._writer.write(snapshot, checkpoint, mine, writers=writers, check=check)
        if not mine and self._worker in writers[: 1 + HEIRS]:
            # a small state is written by the first worker alone: should it die, somebody must have told of the others
            self._post(
                CheckpointHeld(
                    checkpoint=checkpoint,
                    step=snapshot.step,
                    worker=self._worker,
                    chunks=chunks,
                    generation=snapshot.generation,
                    chain=snapshot.chain,
                    writers=writers,
                )
            )

    def _write_more(self, event: CheckpointRequested) -> None:
        copy = self._held.get(event.checkpoint)
        mine = event.reassigned.get(self._worker, ())
        if copy is not None and mine and self._writer is not None:
            self._writer.write(copy.snapshot, event.checkpoint, mine, writers=copy.writers, check=copy.check)

    def _hand_out(self, done: Future[Snapshot], ledger: bytes) -> None:
        error = done.exception()
        if error is not None:  # the learners ask another teacher; this one goes on
            self._shared.copies.answer(None, f"the copy failed: {error}")
            return
        snapshot = done.result()  # never released: the copy lives as long as somebody sends it
        self._shared.copies.answer(
            StateCopy(
                snapshot.step,
                snapshot.chain,
                snapshot.layout.encode(),
                snapshot.memory,
                ledger,
                first=snapshot.first,
                size=snapshot.layout.total,
            )
        )

    def _drop(self, checkpoint: str) -> None:
        copy = self._held.pop(checkpoint, None)
        if copy is not None:
            copy.snapshot.release()
