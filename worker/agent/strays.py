"""Variables of an outer launcher (torchrun, MPI, Slurm) that would tell the script a wrong rank or world."""

from __future__ import annotations

from collections.abc import Iterable

_NAMES = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "NODE_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)
_PREFIXES = ("TORCHELASTIC_", "SLURM_", "PMI_", "PMIX_", "OMPI_COMM_", "MV2_COMM_")
_KEPT = frozenset(
    {
        # who pays and where to put files: says nothing of ranks
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "SLURM_JOB_NAME",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_USER",
        "SLURM_SUBMIT_DIR",
        "SLURM_SUBMIT_HOST",
        "SLURM_TMPDIR",
        "SLURM_CONF",
    }
)


def strays(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the variable names that a worker must not see, sorted."""
    return tuple(sorted(n for n in names if n in _NAMES or (n.startswith(_PREFIXES) and n not in _KEPT)))
