"""What the main thread and the engine thread share: slots computed, results, owners, wishes; one condition guards all.

The main thread computes and applies (`begin`, `take`, `put`, …); the engine links, calls the roll and reduces. Neither
waits for the other except here, and every wait ends when the world moves or the session closes.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from reknit.core.events import Range, WorldChanged

from .agenda import next_work
from .copies import Copies, StateCopy
from .early import Early
from .pool import Pool
from .rehearsal import Outcome, Rehearsal
from .ring.control import Plan, SlotNote
from .ring.linking import WorldMoved
from .ring.pieces import Buffer, Shape
from .ring.vote import Wrong
from .weights import Held
from .work import Compute, Result, Work

Phase = Literal["starting", "compute", "reduce", "mend", "wait", "learn", "user", "evaluate", "finish"]


class Exchange:
    """Shared state of one session.

    Attributes:
        cv: guards everything here.
        world: newest world heard, of any status, that ends the ring being served.
        upcoming: newest planned world heard: the ring goes over to it at the end of a step.
        listed: a world had this incarnation in it, whether it was served or not.
        reducing: a ring is linked and agreed: planned worlds wait for the end of a step.
        generation: generation being served.
        step: step the engine reduces next; `step - 1` is the last result held.
        owners: owners of `step`.
        main_step: step the main thread is at, None before it has the state.
        checkpoint, checkpoint_from: the checkpoint asked for, not before so many committed steps.
        current: this worker has the run's state in memory, as the ring knows it.
        learning: the weights in memory are not the run's until the copy that was asked for is loaded.
        weights: digest of the weights that `step` is computed with, and what the ring agreed on about it.
        rehearsal: whether this worker, if it is new, computes the bits that the others do.
        on_stray: called once this worker's state is known not to be the run's: tells it and ends the links.
        on_doubt: called with what speaks for it once nobody can know any more whether the run's own state is right.
        left_out: a world was made without us; the main thread has not come back to the ring since.
        samples: sample ids of (step, slot), asked for only when a slot is to be named.
        pace: seconds that the main thread's last step took; 0 before there was one.
        begun_at: when the main thread began `main_step`, by the monotonic clock.
        ready_at: step that the weights are ready for when the main thread has not begun any.
        taught: it has received a state, so its fresh one is gone.
        whole: its weights and the results it holds reach `step - 1` without a gap (also when it was evicted meanwhile).
    """

    def __init__(self, worker: str, incarnation: int, shape: Shape, used: Callable[[int], int], total: int) -> None:
        self.cv = threading.Condition()
        self.worker = worker
        self.incarnation = incarnation
        self.shape = shape
        self.used = used
        self.samples: Callable[[int, int], tuple[int, ...]] = lambda _step, _slot: ()
        self.total = total
        self.world: WorldChanged | None = None
        self.upcoming: WorldChanged | None = None
        self.reducing = False
        self.listed = False
        self.generation = 0
        self.step = 0
        self.owners: tuple[Range, ...] = ()
        self.main_step: int | None = None
        self.current = self.whole = False
        self.chain = 0
        self.plan: Plan | None = None
        self.checkpoint = ""
        self.checkpoint_from = 0
        self.leaving = ""
        self.finished = False
        self.left = ""
        self.error: BaseException | None = None
        self.closed = False
        self.phase: Phase = "starting"
        self.phase_since = time.monotonic()
        self.restore_wanted = False
        self.load: StateCopy | None = None
        self.received: StateCopy | None = None
        self.taught = False
        self.pace = 0.0
        self.begun_at = time.monotonic()
        self.ready_at = 0
        self.learning = False
        self.learns_from = 0
        self.left_out = False
        self.copies = Copies(self.cv)
        self.pool = Pool(shape, self.cv)
        self.results: dict[int, Result] = {}
        self.computed: dict[int, Buffer] = {}
        self.notes: dict[int, SlotNote] = {}
        self.weights = Held()
        self.rehearsal = Rehearsal()
        self.early = Early(self)
        self.on_stray: Callable[[int, Wrong], None] = lambda _step, _wrong: None
        self.on_doubt: Callable[[int, str], None] = lambda _step, _why: None
        self.computing: set[int] = set()
        self.orphans: set[int] = set()
        self._settled_checkpoints: collections.deque[str] = collections.deque(maxlen=16)

    # --------------------------------------------------------------------------------------- both sides

    def moved(self) -> bool:
        """True if a newer world than the one being served exists, or the session is over."""
        return self.closed or (self.world is not None and self.world.generation > self.generation)

    def hear(self, world: WorldChanged) -> bool:
        """Take in a newer world; True if the ring being served ends at once, False if at the end of a step or never.

        A planned world may wait only while the ring works: whoever links or calls the roll would wait for peers that
        have gone over already.
        """
        with self.cv:
            newest = max((w.generation for w in (self.world, self.upcoming) if w is not None), default=0)
            if world.generation <= newest:
                return False
            self.listed |= any((m.worker, m.incarnation) == (self.worker, self.incarnation) for m in world.members)
            if world.planned and self.reducing and not self.moved():
                self.upcoming = world
                return False
            self.world, self.upcoming = world, None
            self.cv.notify_all()
            return True

    def switch(self) -> None:
        """The ring being served is over: what was planned to follow it follows now."""
        with self.cv:
            self.reducing = False
            if self.upcoming is not None:
                self.world, self.upcoming = self.upcoming, None
                self.cv.notify_all()

    def notify(self) -> None:
        """Wake every waiter."""
        with self.cv:
            self.cv.notify_all()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for any change."""
        with self.cv:
            self.cv.wait(seconds)

    def enter(self, phase: Phase) -> None:
        """Note what this worker is doing, for its heartbeats."""
        if phase != self.phase or phase == "evaluate":  # there each micro-batch is news
            self.phase = phase
            self.phase_since = time.monotonic()

    def own_slots(self) -> list[int]:
        """This worker's slots of `step` that hold samples, in order."""
        used = self.used(self.step)
        return [s for r in self.owners if r.worker == self.worker for s in range(r.first, min(r.end, used))]

    # ------------------------------------------------------------------------------------- main thread

    def begin(self, step: int) -> None:
        """The state before `step` is in place and `step` is being run."""
        with self.cv:
            now = time.monotonic()
            if self.main_step == step - 1:
                self.pace = now - self.begun_at
            self.main_step, self.begun_at = step, now
            self.computing.clear()
            if not self.learning:
                self._prune()
            self.cv.notify_all()

    def take(self) -> Work:
        """Wait for the next piece of work.

        Raises:
            Exception: what ended the engine, if it ended.
        """
        with self.cv:
            while True:
                work = next_work(self)
                if work is not None:
                    if isinstance(work, Compute):
                        self.computing.add(work.slot)
                        self.weights.touch()
                        self.enter("compute")
                    return work
                if self.phase in {"compute", "user"}:
                    self.enter("reduce")
                self.cv.wait()

    def verified(self, step: int, digest: int, *, before: int = 0, state: int = 0) -> None:
        """The digest that was asked for by `Verify`; `state`: after the last step, that of all that is tracked."""
        with self.cv:
            if step == self.main_step and not self.learning:
                self.weights.take(step, digest, before=before, state=state)
            self.cv.notify_all()

    def proof_slot(self, step: int) -> int:
        """The slot of this step whose gradient is proved, -1 for none."""
        proving = self.rehearsal.proving and self.weights.verify and step == self.step
        return step % self.used(step) if proving else -1

    def rehearsed(self, digest: int) -> Outcome:
        """The slot that was asked for by `Rehearse` has a gradient with this digest."""
        with self.cv:
            return self.rehearsal.compare(digest)

    def stray(self, why: str, wrong: Wrong) -> None:
        """This worker's state is not the run's: it must learn anew, and the ring be linked anew for that."""
        with self.cv:
            self.weights.stray, self.weights.why, self.weights.spoilt = wrong, why, True
            self.current = self.whole = False
            self.learning = True
            self.cv.notify_all()
        self.on_stray(self.main_step or 0, wrong)

    def put(self, step: int, slot: int, buffer: Buffer, note: SlotNote | None = None) -> None:
        """Hand in a computed slot and what it has to say; one that is no longer ours, or of a past step, is dropped."""
        with self.cv:
            self.computing.discard(slot)
            if step == self.step and slot in self.own_slots() and not self.learning:
                self.computed[slot] = buffer
                if note is not None:
                    self.notes[slot] = note
                self.cv.notify_all()
            else:
                self.pool.give(buffer)

    def loaded(self, step: int) -> None:
        """A received state is in the tracked objects; the next step is `step`."""
        with self.cv:
            self.main_step = step
            if self.load is None or self.load.step != step:
                self.cv.notify_all()  # everything began anew while this copy was being loaded: another one follows
                return
            self.load = None
            self.learning = False
            self.weights.touch()
            self.computing.clear()
            for stale in [s for s in self.results if s < step]:
                self._forget(stale)
            self.cv.notify_all()

    def restored(self, step: int, chain: int) -> None:
        """The run's state is what this worker holds now: `step` steps done."""
        with self.cv:
            self.restore_wanted = self.learning = False
            self.load = self.received = None
            self.weights.touch()
            self.ready_at = step
            self.step, self.chain, self.current, self.whole = step, chain, True, True
            self.cv.notify_all()

    # ------------------------------------------------------------------------------------- checkpoints

    def ask_checkpoint(self, checkpoint: str, at_step: int) -> None:
        """A checkpoint is asked for (bus thread), unless the ring has agreed on it before we heard of it."""
        with self.cv:
            if checkpoint not in self._settled_checkpoints:
                self.checkpoint, self.checkpoint_from = checkpoint, at_step

    def checkpoint_settled(self, checkpoint: str) -> None:
        """The ring has agreed on this checkpoint, or it is over: nobody need ask for it any more."""
        with self.cv:
            self._settled_checkpoints.append(checkpoint)
            if self.checkpoint == checkpoint:
                self.checkpoint = ""

    # ----------------------------------------------------------------------------------- engine thread

    def own_buffers(self) -> Sequence[Buffer]:
        """Wait until all own slots of `step` are computed; their buffers in slot order.

        Raises:
            WorldMoved: a newer world arrived first.
        """
        with self.cv:
            while True:
                if self.moved():
                    raise WorldMoved("a newer world arrived while slots were being computed")
                slots = self.own_slots()
                if (not slots or (self.main_step == self.step and not self.learning)) and all(
                    s in self.computed for s in slots
                ):
                    return [self.computed[s] for s in slots]
                self.cv.wait()

    def own_weights(self) -> int:
        """Wait for the digest of the weights that `step` was computed with; 0 if weights are not compared.

        Raises:
            WorldMoved: a newer world arrived first.
        """
        with self.cv:
            while self.weights.verify:
                if self.moved():
                    raise WorldMoved("a newer world arrived before the weights were looked at")
                if self.main_step == self.step == self.weights.step and not self.learning:
                    return self.weights.digest
                self.cv.wait()
            return 0

    def heard(self, *, void: bool, witnesses: int) -> None:
        """The roll call has looked at our digest and our doubts; who goes on takes a fresh one for the next look."""
        with self.cv:
            self.weights.void = self.weights.void or void
            self.weights.witnesses = witnesses
            self.weights.touch()
            self.cv.notify_all()

    def ask(self, *, wanted: bool) -> None:
        """The ring wants (or wants no longer) a digest of the weights before the next slot is computed."""
        with self.cv:
            self.weights.asked = wanted
            self.cv.notify_all()

    def complete(self, result: Result) -> None:
        """A step's result is here: keep it for the main thread and for those that may lack it; go to the next step."""
        with self.cv:
            self.results[result.of.step] = result
            self.weights.compare(result.of.step, result.of.settled.weights)
            self.step = result.of.step + 1
            self.chain = result.of.chain
            self.owners = result.of.settled.owners
            self.rehearsal.proving = result.of.settled.rehearse
            self.orphans.clear()
            self._drop_computed()
            self._prune()
            self.cv.notify_all()

    def start_learning(self, step: int, owners: tuple[Range, ...], chain: int) -> None:
        """This worker has no usable state: results from `step` on are queued until a copy arrives."""
        with self.cv:
            self.current = self.whole = False
            self.learning = True
            self.weights.replace()
            self.rehearsal.begin()
            self.learns_from = step
            self.load = self.received = None
            self.forget_all()
            self.adopt(step, owners)
            self.chain = chain
            self.enter("learn")

    def take_in(self, copy: StateCopy) -> bool:
        """A copy of the state has arrived: the main thread loads it, the results queued since then follow.

        False if it is not wanted (any more), or older than the first result that was queued.
        """
        with self.cv:
            if not self.learning or copy.step < self.learns_from:
                return False
            self.load = copy
            self.received = dataclasses.replace(copy, layout=b"", memory=memoryview(b""), ledger=b"")  # not its bytes
            self.current = self.whole = self.taught = True
            self.weights.spoilt = False
            self.cv.notify_all()
            return True

    def reach_loaded(self) -> None:
        """A received state may be ahead of the results that came round the ring: then it says where we are."""
        with self.cv:
            copy = self.received
            if copy is not None and self.current and copy.step > self.step:
                self._drop_computed()
                self.step, self.chain, self.owners = copy.step, copy.chain, ()
            self.received = None

    def adopt(self, step: int, owners: tuple[Range, ...]) -> None:
        """Take over a roll call's decision: the step in flight and its owners; what we computed of ours is kept."""
        with self.cv:
            before = set(self.own_slots()) if step == self.step else None
            if step != self.step:
                self._drop_computed()
                self.computing.clear()
            self.step, self.owners = step, owners
            mine = set(self.own_slots())
            self.orphans = mine - before if before else set()
            for slot in [s for s in self.computed if s not in mine]:
                self.pool.give(self.computed.pop(slot))
                self.notes.pop(slot, None)
            self.cv.notify_all()

    def forget_all(self) -> None:
        """Drop computed slots and results: what they belonged to is over for this worker."""
        with self.cv:
            self.computed.clear()
            self.notes.clear()
            self.results.clear()
            self.computing.clear()
            self.cv.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the main thread's next `take` with this error."""
        with self.cv:
            self.error = error
            self.cv.notify_all()

    def _drop_computed(self) -> None:
        self.pool.give(*self.computed.values())
        self.computed.clear()
        self.notes.clear()

    def _prune(self) -> None:
        # the newest result stays: at the next break somebody may lack exactly that one
        done = self.main_step if self.main_step is not None else 0
        for step in [s for s in self.results if s < done and s < self.step - 1]:
            self._forget(step)

    def _forget(self, step: int) -> None:
        self.pool.drop(self.results.pop(step))
