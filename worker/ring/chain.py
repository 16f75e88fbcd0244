"""The result chain: a running hash of all results, equal on all workers or one of them is wrong."""

from __future__ import annotations

import xxhash

from .pieces import Buffer


def follow(chain: int, buffer: Buffer) -> int:
    """Return the chain after a result whose bytes are `buffer`; `chain` is the one before it."""
    digest = xxhash.xxh3_64(chain.to_bytes(8, "little"))
    digest.update(buffer.data)
    return digest.intdigest()
