"""The broker's JetStream interface: a request is answered, or refused with a code.

found = await call(connection, "STREAM.INFO.REKNIT", timeout=5.0)      # Refused: see its `code`
seq = unpacked(await connection.ask(subject, data, …))["seq"]           # of an append
"""

from __future__ import annotations

import json
from typing import Any

from nats.aio.msg import Msg

from reknit.core.connection import Connection
from reknit.core.errors import ReknitError

API = "$JS.API"
EXPECT_LAST = "Nats-Expected-Last-Subject-Sequence"
"""Header of an append that is refused unless this is the newest sequence of its subject (0: none yet)."""
STALE = frozenset({10070, 10071, 10164})
"""Codes: the newest sequence is another one."""
NO_STREAM = 10059
NOT_FOUND = frozenset({10037, NO_STREAM})
"""Codes: no such message, no such stream."""
IN_USE = 10058
"""Code: a stream of this name is there, made otherwise."""
NO_PEERS = 10005
"""Code: the cluster has fewer brokers, now, than replicas are wanted."""
NOT_NOW = 503
"""Status: no leader, no space, not yet open; it may become better."""


class Refused(ReknitError):
    """The broker refused a request.

    Attributes:
        status: as HTTP has them.
        code: which of the broker's reasons.
    """

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("description", error)))
        self.status = int(error.get("code", 0))
        self.code = int(error.get("err_code", 0))


async def call(
    connection: Connection, verb: str, body: dict[str, Any] | None = None, *, timeout: float
) -> dict[str, Any]:
    """Ask the broker's interface, say `STREAM.INFO.REKNIT`.

    Raises:
        Refused: it says no.
        NotAnswered: it does not answer now.
        Unauthorized: it forbids us to ask.
    """
    payload = json.dumps(body).encode() if body is not None else b""
    return unpacked(await connection.ask(f"{API}.{verb}", payload, timeout=timeout))


def unpacked(answer: Msg) -> dict[str, Any]:
    """Return what the broker answered.

    Raises:
        Refused: it says no.
    """
    body: dict[str, Any] = json.loads(answer.data)
    if "error" in body:
        raise Refused(body["error"])
    return body
