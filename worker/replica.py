"""This worker's replica of the run's state: results are applied to it; it is loaded, restored, copied and compared.

All of it on the main thread, between two slots.
"""

from __future__ import annotations

import time

from reknit.core.context import WorkerContext
from reknit.core.events import WorkerCaughtUp
from reknit.core.layout import Layout
from reknit.core.order import Course

from . import state
from .chaos import Chaos
from .copies import StateCopy
from .digest import OptimizerDigest, Watch, WeightsDigest
from .exchange import Exchange
from .flat import Flat, Summary
from .ledger import Pending
from .origin import Origin
from .ports import Outlet
from .saving import Saving
from .tracked import Tracked
from .transport.choice import Choice
from .work import Result


class Replica:
    """The tracked objects as the state of a run.

    Args:
        context: who we are, and where checkpoints lie.
        course: of the run.
        tracked: the tracked objects, complete.
        shared: what is shared with the engine.
        flat: puts a result's gradients and buffers in place.
        sums: told of each result that was applied.
        chaos: faults on purpose.
        outlet: where events go.

    Attributes:
        position, chain: committed steps in the weights, and the result chain after them.
        saving: copies it, for checkpoints and learners.
        watch: notices weights that change while a step is computed with them.
        origin: what the run begins with if nobody has its state.
    """

    def __init__(
        self,
        context: WorkerContext,
        course: Course,
        tracked: Tracked,
        shared: Exchange,
        *,
        flat: Flat,
        sums: Choice,
        chaos: Chaos,
        outlet: Outlet,
    ) -> None:
        self.position = self.chain = 0
        self._course = course
        self._tracked = tracked
        self._shared = shared
        self._flat = flat
        self._sums = sums
        self._chaos = chaos
        self._outlet = outlet
        self._learned_at: float | None = None
        names = [name for name, _ in tracked.buffers()]
        self._weights = WeightsDigest(tracked.parameters(), names, lambda: flat.committed)
        self._optimizers = OptimizerDigest(tracked)
        self.watch = Watch(self._weights)
        self.origin = Origin(context, course, tracked, flat=flat, shared=shared, outlet=outlet)
        self.saving = Saving(
            context.worker,
            tracked,
            shared,
            job=context.job,
            directory=context.checkpoint_dir,
            post=outlet.post,
            digests=(self._weights, self._optimizers) if context.verify_weights else None,
        )

    def begin(self, step: int) -> None:
        """The state before `step` is in place and `step` is being run."""
        shared = self._shared
        self._flat.commit_buffers()  # the script may have changed some since the last step: an average's counter, say
        self.saving.begin(step)
        shared.begin(step)
        if self._learned_at is not None and step >= shared.step:
            seconds, self._learned_at = time.monotonic() - self._learned_at, None
            self._outlet.post(
                WorkerCaughtUp(
                    worker=shared.worker,
                    incarnation=shared.incarnation,
                    generation=max(shared.generation, shared.world.generation if shared.world else 0),
                    step=step,
                    seconds=seconds,
                )
            )

    def apply(self, step: int, result: Result) -> Summary:
        """Put the step's gradients and buffers in place, for the script's optimizer to step."""
        first, end = self._course.span(step)
        self.saving.wait()
        self._chaos.before_apply(step, result.buffer[: self._flat.shape.sections[0].gradients or None])
        summary = self._flat.apply(result.buffer, samples=end - first, micro_batch=self._course.micro_batch)
        self._sums.applied(result.buffer)
        self.saving.compared(step, result.of.settled.weights, result.of.settled.state)
        self.saving.agreed(result.of)
        self.position, self.chain = step + 1, result.of.chain
        return summary

    def load(self, copy: StateCopy, ledger: Pending) -> None:
        """Take over the state that a peer has sent, and the ledger records that came with it."""
        self.saving.wait()
        state.load(self._tracked, Layout.decode(copy.layout), copy.memory)
        self._flat.commit_buffers()
        self.watch.forget()
        self.saving.forget()
        ledger.take_over(copy.ledger)
        self._learned_at = time.monotonic()
        self.position, self.chain = copy.step, copy.chain
        self._shared.loaded(copy.step)

    def left_behind(self) -> None:
        """The run went on without us, and results of it will be applied until we have caught up."""
        self._learned_at = time.monotonic()

    def restore(self) -> None:
        """Nobody has the run's state: see `Origin.restore`."""
        self.position, self.chain = self.origin.restore(self.position)

    def copy_for_learners(self, step: int, ledger: Pending) -> None:
        """Copy the state before `step` for those that wait for it."""
        self._flat.restore_buffers()
        self.saving.copy_for_learners(step, self._chain_before(step), self._shared.generation, ledger.export())

    def verify(self, step: int) -> None:
        """Take the digest of the weights that a step was computed with; after the last step, of all the state."""
        digest = self._weights.take()
        wanted = step in (self._shared.total, self.saving.taken_at)
        self._shared.verified(
            step,
            digest,
            before=self.watch.changed(step, digest),
            state=self._optimizers.take() if wanted else 0,
        )

    def digest(self) -> int:
        """Digest of all that is tracked, as it is now."""
        return state.digest(self._tracked)

    def _chain_before(self, step: int) -> int:
        with self._shared.cv:
            before = self._shared.results.get(step - 1)
            return before.of.chain if before is not None else self._shared.chain
