"""What a run begins with, or begins again with, when no worker has its state: a checkpoint, or weights as built."""

from __future__ import annotations

from pathlib import Path

from reknit.core.context import WorkerContext
from reknit.core.errors import CheckpointError, StateError
from reknit.core.events import CheckpointRestored
from reknit.core.manifest import list_manifests
from reknit.core.newest import candidates
from reknit.core.order import Course

from . import restore, state
from .exchange import Exchange
from .flat import Flat
from .ports import Outlet
from .tracked import Tracked


class Origin:
    """Restores the newest checkpoint that verifies, if there is any, and says which.

    Args:
        context: which checkpoints are this run's.
        course: what the checkpoint must be of.
        tracked: where the state goes.
        flat: told of the buffers that were loaded.
        shared: told that the state is here.
        outlet: where `checkpoint.restored` goes.
    """

    def __init__(
        self,
        context: WorkerContext,
        course: Course,
        tracked: Tracked,
        *,
        flat: Flat,
        shared: Exchange,
        outlet: Outlet,
    ) -> None:
        self._context = context
        self._course = course
        self._tracked = tracked
        self._flat = flat
        self._shared = shared
        self._outlet = outlet

    def restorable(self) -> int:
        """Steps in the newest checkpoint of this run (to resume: of its line) that this worker can see, or -1."""
        context = self._context
        if not context.checkpoint_dir:
            return -1
        listed = list_manifests(Path(context.checkpoint_dir), context.job)
        mine = candidates(listed, run=context.run, resume=context.resume, after=context.resume_run)
        return next((item.manifest.step for item in mine if item.manifest is not None), -1)

    def restore(self, position: int) -> tuple[int, int]:
        """Take the newest checkpoint that verifies, or what this worker was built with (main thread).

        Args:
            position: committed steps in the weights here.

        Returns:
            Committed steps in the weights now, and the result chain after them.

        Raises:
            CheckpointError: all checkpoints are bad, or the newest is of another course.
            StateError: there is none, and the weights here are not those that this worker was built with.
        """
        context, shared = self._context, self._shared
        found: restore.Restored | None = None
        skipped: tuple[str, ...] = ()
        if context.checkpoint_dir:
            where, after = Path(context.checkpoint_dir), context.resume_run
            found, skipped = restore.newest_state(
                where, context.job, run=context.run, resume=context.resume, after=after
            )
        if found is None and (position > 0 or shared.weights.spoilt):
            raise StateError(
                "nobody has the state of the run any more, and this worker's weights are not those that it began with",
                hint="it is started anew, and the run begins again; take checkpoints to lose less",
            )
        step = chain = 0
        if found is not None:
            manifest = found.manifest
            if manifest.seed != self._course.seed or manifest.step > self._course.steps:
                raise CheckpointError(
                    f"checkpoint {manifest.checkpoint} is of another course: seed {manifest.seed}, "
                    f"step {manifest.step}; here seed {self._course.seed}, {self._course.steps} steps",
                    hint="resume with the script and flags of the run that wrote it",
                )
            state.load(self._tracked, found.layout, found.memory)
            self._flat.commit_buffers()
            step, chain = manifest.step, manifest.chain
        if found is not None or shared.generation > 1:
            self._outlet.post(
                CheckpointRestored(
                    run=context.run,
                    checkpoint=found.manifest.checkpoint if found is not None else "",
                    step=step,
                    worker=context.worker,
                    generation=shared.generation,
                    chain=chain,
                    skipped=skipped,
                )
            )
        shared.restored(step, chain)
        return step, chain
