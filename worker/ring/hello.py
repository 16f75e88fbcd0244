"""Who may connect: a mutual proof of the job's secret, bound to job, generation, both members and the purpose.

    dialer  -> {job, purpose, generation, worker, incarnation, to, nonce}
    listener-> {nonce, proof = HMAC(secret, "listener" | hello | nonce), door}  or {refused: why}
    dialer  -> {proof = HMAC(secret, "dialer" | hello | nonce), token}
    listener-> {ok: true, lane}                                                 or {refused: why}

A dialer that can reach the listener's door (see `door`) has sent a lane there with this token; `lane` says whether the
listener has it, so that both use it or neither does.

A message is a u32 length (at most 4 KiB) and msgpack. Nothing is believed before the proof; a stale generation is
refused by number.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from typing import Any, Protocol

from reknit.core import wire
from reknit.core.errors import ReknitError, WireError

from .door import Door
from .lane import Incoming

_LENGTH = struct.Struct("<I")
_MAX = 4096


class Connection(Protocol):
    """What a hello needs of a socket."""

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes."""

    def recv(self, count: int, /) -> bytes:
        """Receive at most `count` bytes; none at the end."""


class Refused(ReknitError):
    """The other side does not accept this connection; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hello:
    """What a dialer claims to be.

    Attributes:
        job: job name.
        purpose: "ring", "state" or "feed".
        generation: the world it belongs to.
        worker, incarnation: the dialer.
        to: the worker it wants to reach.
    """

    job: str
    purpose: str
    generation: int
    worker: str
    incarnation: int
    to: str

    def bytes(self) -> bytes:
        """Canonical bytes, covered by both proofs."""
        return wire.pack(list(dataclasses.astuple(self)))


def dial(sock: Connection, hello: Hello, secret: str, offer: Callable[[str], bytes] = lambda _door: b"") -> bool:
    """Introduce ourselves on a fresh connection and check the listener's proof; the caller sees to the patience.

    Args:
        sock: the connection.
        hello: who we are.
        secret: the job's.
        offer: sends a lane to the listener's door and returns its token, empty if it cannot be reached.

    Returns:
        True if the listener has taken the lane.

    Raises:
        Refused: the listener refuses, or does not know the secret.
        OSError: the connection failed or timed out.
    """
    ours = secrets.token_bytes(16)
    _send(sock, {"hello": list(dataclasses.astuple(hello)), "nonce": ours})
    answer = _receive(sock)
    if "refused" in answer:
        raise Refused(str(answer["refused"]))
    theirs = answer.get("nonce", b"")
    if not hmac.compare_digest(_bytes(answer.get("proof")), _proof(secret, b"listener", hello, ours)):
        raise Refused(f"{hello.to} does not know the secret of job {hello.job!r}")
    token = offer(str(answer.get("door", "")))
    _send(sock, {"proof": _proof(secret, b"dialer", hello, _bytes(theirs)), "token": token})
    last = _receive(sock)
    if not last.get("ok"):
        raise Refused(str(last.get("refused", "refused without a reason")))
    return bool(token) and last.get("lane") is True


def accept(
    sock: Connection, job: str, worker: str, secret: str, oldest_generation: int, *, door: Door | None = None
) -> tuple[Hello, Incoming | None]:
    """Answer a dialer; the caller sees to the patience.

    Args:
        sock: the connection.
        job: its name.
        worker: who we are.
        secret: the job's.
        oldest_generation: older ones are refused.
        door: where a dialer on this host may leave a lane.

    Returns:
        Who the dialer is, and the lane that it shares with us.

    Raises:
        Refused: wrong job, wrong secret, stale generation, or not this protocol; the dialer has been told.
        OSError: the connection failed or timed out.
    """
    first = _receive(sock)
    try:
        name, purpose, generation, peer, incarnation, to = first["hello"]
        hello = Hello(str(name), str(purpose), int(generation), str(peer), int(incarnation), str(to))
        nonce = _bytes(first["nonce"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"hello does not fit: {error}") from error
    reason = ""
    if hello.job != job:
        reason = f"this worker belongs to job {job!r}, not {hello.job!r}"
    elif hello.to != worker:
        reason = f"this is {worker!r}, not {hello.to!r}"
    elif hello.generation < oldest_generation:
        reason = f"generation {hello.generation} is over, this is {oldest_generation}"
    if reason:
        _send(sock, {"refused": reason})
        raise Refused(reason)
    ours = secrets.token_bytes(16)
    name = door.name if door is not None and hello.purpose == "ring" else ""
    _send(sock, {"nonce": ours, "proof": _proof(secret, b"listener", hello, nonce), "door": name})
    answer = _receive(sock)
    if not hmac.compare_digest(_bytes(answer.get("proof")), _proof(secret, b"dialer", hello, ours)):
        reason = f"{hello.worker!r} does not know the secret of job {job!r}"
        _send(sock, {"refused": reason})
        raise Refused(reason)
    lane = door.take(_bytes(answer.get("token"))) if door is not None and name else None
    try:
        _send(sock, {"ok": True, "lane": lane is not None})
    except OSError:
        if lane is not None:
            lane.close()
        raise
    return hello, lane


def _proof(secret: str, side: bytes, hello: Hello, nonce: bytes) -> bytes:
    return hmac.new(secret.encode(), side + b"|" + hello.bytes() + b"|" + nonce, hashlib.sha256).digest()


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


def _send(sock: Connection, message: dict[str, Any]) -> None:
    data = wire.pack(message)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _receive(sock: Connection) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    if length > _MAX:
        raise Refused("not a reknit hello")
    try:
        message = wire.unpack(_exactly(sock, length))
    except WireError as error:
        raise Refused(str(error)) from error
    if not isinstance(message, dict):
        raise Refused("not a reknit hello")
    return message


def _exactly(sock: Connection, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("closed during the hello")
        data += part
    return bytes(data)
