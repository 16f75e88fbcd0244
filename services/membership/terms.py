"""Terms of a run: the joiner's are compared with the job's, and the first difference is named."""

from __future__ import annotations

from itertools import zip_longest

from reknit.core.events import Terms

_PLAIN = ("slots", "micro_batch", "samples", "epochs", "seed", "transport")


def difference(job: Terms, worker: Terms) -> str:
    """Return the first difference in words, or an empty string if the terms are equal."""
    return essential(job, worker) or arithmetic(job, worker)


def essential(job: Terms, worker: Terms) -> str:
    """Return the first difference with which the worker could not take part at all, or an empty string."""
    for name in _PLAIN:
        ours, theirs = getattr(job, name), getattr(worker, name)
        if ours != theirs:
            return f"{name} differs: the job has {ours}, this worker has {theirs}"
    if job.parameters != worker.parameters:
        return _parameters(job.parameters, worker.parameters)
    if job.verify != worker.verify:
        ours, theirs = ("on" if terms.verify else "off" for terms in (job, worker))
        return f"verify_weights differs: the job has it {ours}, this worker {theirs}"
    return ""


def arithmetic(job: Terms, worker: Terms) -> str:
    """Return the first difference that lets the worker compute other bits than the job's, or an empty string."""
    for name in sorted(job.numerics.keys() | worker.numerics.keys()):
        ours, theirs = job.numerics.get(name, "nothing"), worker.numerics.get(name, "nothing")
        if ours != theirs:
            return f"numerics.{name} differs: the job has {ours}, this worker has {theirs}"
    if job.canary and worker.canary and job.canary != worker.canary:
        return f"this machine computes other bits: its canary gave {worker.canary}, that of the job {job.canary}"
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
