"""Which checkpoints belong together: a line is a run and those that it was resumed from. Pure: it sees manifests only.

A job of one name may have been begun anew: then its checkpoints are of several lines, and the one that was written last
need not be the one that is meant. So a line is chosen once, when the run is submitted; it stands in the submission, and
what belongs to another line is never used in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from reknit.core.errors import UsageError
from reknit.core.manifest import Manifest, run_of


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A run from which no other was resumed, with those that it goes back to.

    Attributes:
        run: the newest run of the line.
        newest: the checkpoint of it that was committed last: where the line stands.
        runs: ids of all its runs.
    """

    run: str
    newest: Manifest
    runs: frozenset[str]

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and step that it has come to."""
        return self.newest.epoch, self.newest.step

    def __str__(self) -> str:
        """Say where it stands."""
        return f"run {self.run} at step {self.newest.step} (epoch {self.newest.epoch + 1})"


def ancestry(manifests: Iterable[Manifest], run: str) -> frozenset[str]:
    """Return the run and all runs that it goes back to, as far as manifests tell; a parent may be deleted by now."""
    before: dict[str, set[str]] = {}
    for manifest in manifests:
        if manifest.parent:
            before.setdefault(manifest.run, set()).add(run_of(manifest.parent))
    found, more = {run}, [run]
    while more:
        new = before.get(more.pop(), set()) - found
        found |= new
        more += new
    return frozenset(found)


def lines(manifests: Sequence[Manifest]) -> list[Line]:
    """Return every line, that of the newest checkpoint first.

    Args:
        manifests: of one job.
    """
    newest: dict[str, Manifest] = {}
    for manifest in sorted(manifests, key=lambda m: m.number):
        newest[manifest.run] = manifest
    found = [Line(run, manifest, ancestry(manifests, run)) for run, manifest in newest.items()]
    heads = [line for line in found if not any(line.run in other.runs for other in found if other.run != line.run)]
    return sorted(heads, key=lambda line: -line.newest.number)


def chosen(job: str, manifests: Sequence[Manifest], asked: str) -> Line | None:
    """Return the line that a new run is resumed from, None if there is no checkpoint.

    Args:
        job: its name, for errors.
        manifests: of the job.
        asked: a run that the user named; empty: the line of the newest checkpoint.

    Raises:
        UsageError: there is no checkpoint of the run that was named; or none was named, and another line has come
            further than the newest one, so that it is open which is meant.
    """
    found = lines(manifests)
    if asked:
        return _asked(job, manifests, asked)
    if not found:
        return None
    newest, *others = found
    further = [line for line in others if line.position > newest.position]
    if further:
        said = "; ".join(str(line) for line in (newest, *further))
        raise UsageError(
            f"it is open which run of job {job!r} --resume means: the newest one has not come as far as an earlier one",
            hint=f"name it with --resume-run RUN: {said}",
        )
    return newest


def _asked(job: str, manifests: Sequence[Manifest], asked: str) -> Line:
    own = [manifest for manifest in manifests if manifest.run == asked]
    if not own:
        known = "; ".join(str(line) for line in lines(manifests)) or "no run has one"
        raise UsageError(f"job {job!r} has no checkpoint of run {asked!r}", hint=f"runs with checkpoints: {known}")
    return Line(asked, max(own, key=lambda m: m.number), ancestry(manifests, asked))
