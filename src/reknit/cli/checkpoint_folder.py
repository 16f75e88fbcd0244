"""Whether a folder can hold a job's checkpoints, found out before anything is started.

    check(Path("/mnt/shared"), "digits")      # raises UsageError with the reason and what to do

The folder is made if it is missing, and a file is written into it that is gone again at once.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from reknit.core.durable import make_directory
from reknit.core.errors import UsageError

_PROBE = 4096
"""Bytes that are written to see that there is room."""


def check(root: Path, job: str) -> None:
    """See that this node can write a job's checkpoints.

    Args:
        root: folder of all jobs' checkpoints, absolute.
        job: name of the job; its own folder is looked at too if it exists.

    Raises:
        UsageError: it cannot; the text says why.
    """
    fault = fault_of(root, job)
    if fault:
        raise UsageError(
            f"no checkpoint could be written to {root}: {fault}",
            hint="give a folder that exists or can be made, and that you may write to: --checkpoint-dir",
        )


def fault_of(root: Path, job: str) -> str:
    """Return why the job's checkpoints cannot be written there, in words; empty if they can.

    Args:
        root: as for `check`.
        job: as for `check`.
    """
    own = root / job
    in_the_way = next((fault for path in (*reversed(own.parents), own) if (fault := _obstacle(path))), "")
    if in_the_way:
        return in_the_way
    try:
        make_directory(root)
    except OSError as error:
        return f"it cannot be made ({_in_words(error)})"
    folder = own if own.is_dir() else root
    try:
        os.scandir(folder).close()
    except OSError as error:
        return f"{folder} cannot be listed ({_in_words(error)})"
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            if probe.write(bytes(_PROBE)) != _PROBE:
                return f"no space is left in {folder}"
            os.fsync(probe.fileno())
    except OSError as error:
        return f"nothing can be written into {folder} ({_in_words(error)})"
    return ""


def _obstacle(path: Path) -> str:
    """Why this part of the way is no folder, empty if it is one or is not there."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return f"{path} is a symbolic link to {path.readlink()}, which does not exist" if path.is_symlink() else ""
    except OSError as error:
        return f"{path} cannot be entered ({_in_words(error)})"
    return "" if stat.S_ISDIR(kind) else f"{path} is not a directory"


def _in_words(error: OSError) -> str:
    return error.strerror or str(error)
