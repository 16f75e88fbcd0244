"""What went wrong first: the root cause, and what followed from it. Pure: a fold of one run's events, in log order.

Ring errors are never a cause: a worker that loses its neighbour says so, the neighbour's own end is the cause.
"""

from __future__ import annotations

import dataclasses

from reknit.core.events import (
    AnyEvent,
    JobFinished,
    JobSubmitted,
    WorkerExited,
    WorkerFailed,
    WorkerFinished,
    WorkerRefused,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong in a worker.

    Attributes:
        what: one line: the exception, or how the process ended.
        traceback: the script's traceback or the last lines of stderr; may be empty.
        log: path of the worker's log on its node; empty if not known.
        step: step in which it happened, -1: not known.
    """

    worker: str
    incarnation: int
    node: str
    what: str
    traceback: str = ""
    log: str = ""
    step: int = -1


class Failures:
    """The failures of a job's newest run."""

    def __init__(self) -> None:
        self.all: list[Failure] = []
        self.finished: JobFinished | None = None
        self._run = ""
        self._trained: set[tuple[str, int]] = set()

    def tell(self, event: AnyEvent) -> None:
        """Take in the next event."""
        match event:
            case JobSubmitted():
                if not self._run or self.finished is not None:
                    self._run, self.finished = event.run, None
                    self.all.clear()
                    self._trained.clear()
            case JobFinished() if event.run == self._run and self.finished is None:
                self.finished = event
            case WorkerFinished():
                self._trained.add((event.worker, event.incarnation))
            case WorkerFailed():
                self.all.append(
                    Failure(event.worker, event.incarnation, "", event.error, event.traceback, step=event.step)
                )
            case WorkerExited():
                self._exited(event)
            case WorkerRefused() if event.final:
                self.all.append(Failure(event.worker, event.incarnation, "", f"refused: {event.reason}"))
            case _:
                pass

    def _exited(self, event: WorkerExited) -> None:
        for i, failure in enumerate(self.all):
            if (failure.worker, failure.incarnation) == (event.worker, event.incarnation):
                # the exit that follows from an exception tells where the log is; it is no second failure
                step = failure.step if failure.step >= 0 else event.last_step
                self.all[i] = dataclasses.replace(failure, node=event.node, log=event.log, step=step)
                return
        if event.expected or event.code == 0:
            return
        what = f"killed by signal {-event.code} ({event.signal})" if event.code < 0 else f"exit code {event.code}"
        if event.out_of_memory:
            what += ": out of memory"
        elif event.code == -9:
            what += ", possibly out of memory"
        self.all.append(
            Failure(
                event.worker,
                event.incarnation,
                event.node,
                what,
                event.stderr_tail,
                event.log,
                event.last_step,
            )
        )

    @property
    def root(self) -> Failure | None:
        """Where it began: what the end of the run names, else the first in time.

        Of a completed run that is what the script did after its last step: the run has got over all before.
        """
        if self.finished is not None and self.finished.outcome == "completed":
            return next((f for f in self.all if (f.worker, f.incarnation) in self._trained), None)
        named = self.finished.root_worker if self.finished else ""
        return next((f for f in self.all if f.worker == named), self.all[0] if self.all else None)

    @property
    def follow_ups(self) -> list[Failure]:
        """All others, in time."""
        return [failure for failure in self.all if failure is not self.root]
