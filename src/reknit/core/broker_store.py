"""What a broker keeps in its store directory besides the log itself: lock, port, credentials, configuration, own log.

All files are readable by their owner only and replaced whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from pathlib import Path

import msgspec

from reknit.core.errors import UsageError

_LOG_TAIL = 4096


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Names and passwords of one store, made once."""

    server_name: str
    user: str
    password: str
    system_user: str
    system_password: str


class BrokerStore:
    """The directory of one broker.

    Attributes:
        path: the directory.
        config: the server's configuration file.
        log: where the server writes its log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.config = self.path / "nats.conf"
        self.log = self.path / "nats.log"
        self.port_file = self.path / "port"

    def lock(self) -> int:
        """Make the directory and lock it; returns the lock's file descriptor, which the server process must inherit.

        Raises:
            UsageError: another server runs over it, or it cannot be used.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"the broker's store {self.path} cannot be used: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise UsageError(
                f"another broker (pid {holder}) runs over the store {self.path}",
                hint="stop it first, or give this one another store",
            ) from None
        return lock

    def credentials(self) -> Credentials:
        """Return the credentials, made at the first time.

        Raises:
            UsageError: the file is damaged.
        """
        path = self.path / "credentials.json"
        if path.exists():
            try:
                return msgspec.json.decode(path.read_bytes(), type=Credentials)
            except msgspec.MsgspecError as error:
                raise UsageError(f"{path} is damaged: {error}", hint="remove it; clients must be told anew") from error
        made = Credentials(
            server_name=f"reknit-{secrets.token_hex(6)}",
            user="reknit",
            password=secrets.token_hex(24),
            system_user="system",
            system_password=secrets.token_hex(24),
        )
        self.write(path, msgspec.json.encode(made).decode())
        return made

    def kept_port(self) -> int:
        """Return the port used before over this store, 0 if none."""
        with contextlib.suppress(OSError, ValueError):
            return int(self.port_file.read_text())
        return 0

    def keep_port(self, port: int) -> None:
        """Remember the port for the next start."""
        self.write(self.port_file, str(port))

    def write(self, path: Path, text: str) -> None:
        """Write a file that only its owner may read, whole or not at all."""
        new = path.with_name(path.name + ".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def log_size(self) -> int:
        """Bytes of the server's log."""
        try:
            return self.log.stat().st_size
        except OSError:
            return 0

    def log_since(self, offset: int, limit: int = _LOG_TAIL) -> list[str]:
        """Return the lines of the log after an offset, of the last `limit` bytes at most."""
        size = self.log_size()
        if size < offset:  # the server has begun a new file
            offset = 0
        try:
            with self.log.open("rb") as log:
                log.seek(max(offset, size - limit))
                return log.read(limit).decode(errors="replace").splitlines()
        except OSError:
            return []
