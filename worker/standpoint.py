"""Where a run is, as an evaluation must know it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reknit.core.errors import UsageError

from .evaluation import Place

if TYPE_CHECKING:
    from .run import Run


class Standpoint:
    """Looks at the run of this process (see `evaluation.Whereabouts`)."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def place(self) -> Place:
        """Where the script is.

        Raises:
            UsageError: the first step was not begun, or a micro-batch is being computed.
        """
        run = self._run
        if run.slots.slot >= 0:
            raise UsageError(
                f"ring.evaluate was called inside the loop over the micro-batches of step {run.slots.step}",
                hint="workers have different numbers of micro-batches: call it between two steps, or after the last",
            )
        if run.stage == "":
            raise UsageError(
                "ring.evaluate was called before the first step",
                hint="call it in the loop over the steps, or after it: before it a joiner has other weights",
            )
        return Place(run.stage, run.shared.total if run.stage == "end" else run.replica.position, run.replica.chain)

    def world(self) -> tuple[int, tuple[str, ...]]:
        """Generation, and members in ring order, of the newest world heard; alone there is none."""
        run = self._run
        return run.hearing.members_of, run.hearing.members or (run.context.worker,)

    def check(self) -> None:
        """Raise what ends the script, if it is to end."""
        self._run.raise_if_over()

    def measuring(self, samples: tuple[int, ...]) -> None:
        """A micro-batch of these samples is measured now: what heartbeats and failure reports say."""
        self.check()
        self._run.slots.samples = samples
        self._run.shared.enter("evaluate")

    def hangs(self, why: str) -> None:
        """End this process: the others have long finished."""
        self._run.hangs(why)
