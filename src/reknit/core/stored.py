"""One stored message, as the broker gives it: read from the journal, got by its number, or heard live."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from nats.aio.msg import Msg


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of the journal."""

    subject: str
    seq: int
    headers: dict[str, str]
    data: bytes
    previous: int = 0
    """Sequence before it on the same subject; only known of live messages."""
    time: float = 0.0
    """When the broker stored it, seconds since the epoch by its clock; 0: not told."""


def live(message: Msg) -> Stored | None:
    """Return what a message on a live subject stands for, None if it did not come from the journal."""
    headers = message.headers or {}
    try:
        return Stored(
            subject=headers["Nats-Subject"],
            seq=int(headers["Nats-Sequence"]),
            headers=headers,
            data=message.data,
            previous=int(headers["Nats-Last-Sequence"]),
            time=seconds_of(headers.get("Nats-Time-Stamp", "")),
        )
    except (KeyError, ValueError):
        return None


def place_of(reply: str) -> tuple[int, float]:
    """Sequence in the stream and time of storing, from `$JS.ACK.…` (9 tokens, or more with a domain)."""
    tokens = reply.split(".")
    first = 5 if len(tokens) == 9 else 7
    # whole microseconds, as `seconds_of` has them: whoever reads the log is told the same, live or later
    return int(tokens[first]), int(tokens[first + 2]) // 1000 / 1e6


def seconds_of(text: str) -> float:
    """Seconds since the epoch of a time as the broker writes it, 0 if it is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def header_lines(raw: bytes) -> dict[str, str]:
    """Headers of a message that was got by its number."""
    found = {}
    for line in raw.decode("utf-8", "replace").split("\r\n")[1:]:
        key, colon, value = line.partition(":")
        if colon:
            found[key.strip()] = value.strip()
    return found
