"""Files that are whole and on disk under their name, or not there: temp name, write, fsync, rename, fsync directory.

    with DurableFile(path) as file:      # an exception inside removes the temp file and leaves `path` as it was
        file.write(header)
        file.write(body)

Writes go straight to the descriptor. A buffered file that is fsynced before it is flushed is durable at size 0, which
is how several checkpoint writers lose their metadata in a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from types import TracebackType

TEMP_SUFFIX = ".tmp"
_PIECE = 8 * 1024 * 1024


class DurableFile:
    """One file being written; it appears under `path` when the block ends without an exception.

    Attributes:
        path: the final name.
        temp: the name until then, in the same directory; it begins with a dot and ends with `TEMP_SUFFIX`.
        written: bytes so far.

    Raises:
        OSError: no space, no permission, an I/O error; nothing of the file is left.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temp = path.with_name(f".{path.name}.{os.getpid()}{TEMP_SUFFIX}")
        self.written = 0
        self._fd = os.open(self.temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def write(self, data: memoryview | bytes) -> None:
        """Append bytes."""
        view = memoryview(data).cast("B")
        while view:
            count = os.write(self._fd, view[:_PIECE])
            if count == 0:
                raise OSError(errno.EIO, "nothing was written", str(self.temp))
            view = view[count:]
            self.written += count

    def __enter__(self) -> DurableFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            try:
                if kind is None:
                    os.fsync(self._fd)
            finally:
                os.close(self._fd)
            if kind is None:
                self.temp.rename(self.path)
        except BaseException:
            self._discard()
            raise
        if kind is not None:
            self._discard()
            return
        sync_directory(self.path.parent)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            self.temp.unlink()


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: files renamed into it, created or removed.

    Raises:
        OSError: an I/O error.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents, each durable in its own parent.

    Raises:
        OSError: no permission, no space, or a file is in the way.
    """
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        if directory.parent == directory:
            break
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)
