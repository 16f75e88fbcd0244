"""`ring.save`: a file of the script's own, whole under its name or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any, cast

import torch

from reknit.core.durable import DurableFile


class _Writer:
    """A durable file as `torch.save` wants one."""

    def __init__(self, file: DurableFile) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes."""
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered here."""


def save(value: Any, path: str | os.PathLike[str]) -> None:
    """Write as `torch.save` does, to a file of another name first; it is on disk when it gets its own.

    Raises:
        OSError: no space, no permission, no such directory; a file that was there before is untouched.
    """
    with DurableFile(Path(path)) as file:
        torch.save(value, cast(IO[bytes], _Writer(file)))
