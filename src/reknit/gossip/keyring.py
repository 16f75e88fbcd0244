"""Keys that seal datagrams: the first one seals, all of them open.

A key is changed in three steps, each done on every node before the next one begins: add the new key behind the old
one; put it first; remove the old one. So at every moment everybody can open what anybody seals.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from reknit.core.errors import UsageError

BYTES: Final = 32
"""Length of a key."""
TAG: Final = 4
"""Bytes that name a key in a datagram."""


def tag_of(key: bytes) -> bytes:
    """Return what names a key without telling it."""
    return hashlib.sha256(b"reknit gossip key name" + key).digest()[:TAG]


def derived(secret: bytes) -> bytes:
    """Return the key of a job that has no keys of its own: made of the job's secret."""
    return hmac.new(secret, b"reknit gossip", hashlib.sha256).digest()


@dataclasses.dataclass(frozen=True, slots=True)
class Keyring:
    """Keys of 32 bytes, the sealing one first.

    Raises:
        ValueError: there is no key, one has another length, or two are the same.
    """

    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        """Check the keys."""
        if not self.keys:
            raise ValueError("a keyring needs a key")
        if any(len(key) != BYTES for key in self.keys):
            raise ValueError(f"a key has {BYTES} bytes")
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("a key is there twice")

    @property
    def sealing(self) -> bytes:
        """The key that seals."""
        return self.keys[0]

    def find(self, tag: bytes) -> bytes | None:
        """Return the key of this name, None if there is none."""
        return next((key for key in self.keys if tag_of(key) == tag), None)

    def install(self, key: bytes) -> Keyring:
        """First step: a key that opens, and does not seal yet."""
        return self if key in self.keys else Keyring((*self.keys, key))

    def use(self, key: bytes) -> Keyring:
        """Second step: seal with this key.

        Raises:
            ValueError: it is not installed.
        """
        if key not in self.keys:
            raise ValueError("a key is installed on every node before it is used")
        return Keyring((key, *(k for k in self.keys if k != key)))

    def remove(self, key: bytes) -> Keyring:
        """Third step: do not open with this key any more.

        Raises:
            ValueError: it seals.
        """
        if key == self.sealing:
            raise ValueError("the key that seals cannot be removed: use another one first")
        return Keyring(tuple(k for k in self.keys if k != key))


def parse(lines: Iterable[str], origin: str) -> Keyring:
    """Read keys, one a line as 64 hexadecimal digits, the sealing one first; empty lines and `#` comments are skipped.

    Raises:
        UsageError: a line is no key, or there is none.
    """
    keys: list[bytes] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != BYTES:
            raise UsageError(
                f"{origin}, line {number} is no key",
                hint=f"a key is {2 * BYTES} hexadecimal digits: openssl rand -hex {BYTES}",
            )
        keys.append(key)
    try:
        return Keyring(tuple(keys))
    except ValueError as error:
        raise UsageError(
            f"{origin}: {error}", hint=f"write one a line: openssl rand -hex {BYTES} >> {origin}"
        ) from error


def load(path: Path) -> Keyring:
    """Read a file of keys.

    Raises:
        UsageError: it cannot be read, or holds no keys.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"keys cannot be read from {path}: {error}", hint="check the path and who may read it"
        ) from error
    return parse(text.splitlines(), str(path))
