"""Bytes on every wire: msgpack. The only module of the project that imports msgpack.

`encode(struct)` / `decode(bytes, type)` for events and records, `pack` / `unpack` for plain values (ring control
frames, state skeletons). Decoding never runs code and never trusts sizes: a wrong type is a `WireError` that names
the path inside the message.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
import msgspec

from reknit.core.errors import WireError

T = TypeVar("T")


def pack(value: Any) -> bytes:
    """Pack plain values (None, bool, int, float, str, bytes, list, tuple, dict) to msgpack bytes."""
    return bytes(msgpack.packb(value, use_bin_type=True))


def unpack(data: bytes | memoryview) -> Any:
    """Unpack one msgpack value; lists come back as lists, keys may be of any hashable plain type.

    Raises:
        WireError: the bytes are not exactly one msgpack value.
    """
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack raises half a dozen unrelated classes for bad bytes
        raise WireError(f"not a msgpack message ({type(error).__name__}: {error})") from error


def encode(value: msgspec.Struct) -> bytes:
    """Encode a struct of `core.events` (or any msgspec struct)."""
    return pack(msgspec.to_builtins(value, builtin_types=(bytes,)))


def decode(data: bytes | memoryview, kind: type[T] | Any) -> T:
    """Decode bytes into `kind` (a struct or a union of tagged structs).

    Raises:
        WireError: not msgpack, or a field is missing or of a wrong type; the text names the path.
    """
    plain = unpack(data)
    try:
        result: T = msgspec.convert(plain, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise WireError(f"message does not fit its schema: {error}") from error
    return result
