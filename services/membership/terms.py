"""Terms of a run: the joiner's are compared with the job's, and the first difference is named."""

from __future__ import annotations

from itertools import zip_longest

from reknit.core.events import Terms

_NUMBERS = ("slots", "micro_batch", "samples", "epochs", "seed")


def difference(job: Terms, worker: Terms) -> str:
    """Return the first difference in words, or an empty string if the terms are equal."""
    for name in _NUMBERS:
        ours, theirs = getattr(job, name), getattr(worker, name)
        if ours != theirs:
            return f"{name} differs: the job has {ours}, this worker has {theirs}"
    if job.parameters != worker.parameters:
        return _parameters(job.parameters, worker.parameters)
    for name in sorted(job.numerics.keys() | worker.numerics.keys()):
        ours, theirs = job.numerics.get(name, "nothing"), worker.numerics.get(name, "nothing")
        if ours != theirs:
            return f"numerics.{name} differs: the job has {ours}, this worker has {theirs}"
    return ""


def _parameters(ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    """Name the first tensor that is missing, added or of another shape; order counts, it is the reduction's."""
    for index, (mine, its) in enumerate(zip_longest(ours, theirs)):
        if mine == its:
            continue
        if mine is None:
            return f"tensor {index} is one too many: this worker tracks '{its}', the job tracks {len(ours)}"
        if its is None:
            return f"tensor {index} is missing: the job tracks '{mine}', this worker only {len(theirs)}"
        return f"tensor {index} differs: the job has '{mine}', this worker has '{its}'"
    return ""
