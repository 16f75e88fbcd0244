"""What the broker itself tells: connections that end, and elections among the brokers of a cluster."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable

from nats.aio.msg import Msg

from reknit.core import log
from reknit.core.connection import Connection
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable, Unauthorized
from reknit.core.servers import connection_id
from reknit.core.subjects import STREAM

SPREAD = 0.3
"""Seconds over which the members of a job read the log again after an election."""
_SYSTEM = "$SYS.ACCOUNT.REKNIT.DISCONNECT"
_ELECTED = f"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.{STREAM}"

_log = log.get("bus")


class News:
    """Listens for one bus."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._system: Connection | None = None
        self._elections = False

    async def close(self) -> None:
        """End the connection to the system account."""
        if self._system is not None:
            await self._system.close()

    async def disconnects(self, end: Endpoint, source: str, callback: Callable[[int, str], None]) -> bool:
        """Hear when a connection to the broker ends; see `Bus.disconnects`."""
        if not end.system_user:
            return False

        def on_message(message: Msg) -> None:
            try:
                notice = json.loads(message.data)
                client, server = notice["client"], str(notice["server"]["id"])
                callback(connection_id(server, int(client["id"])), str(client.get("name", "")))
            except (ValueError, KeyError, TypeError) as error:
                _log.warning("unreadable notice of the broker", subject=message.subject, reason=repr(error))

        try:
            self._system = await Connection.open(
                end.url, end.system_user, end.system_password, name=f"{source}-system", timeout=5.0
            )
            await self._system.listen(_SYSTEM, on_message)
        except ControlPlaneUnreachable as error:
            _log.warning("no disconnect notices", reason=str(error))
            return False
        return True

    async def elections(self, elected: Callable[[], None]) -> None:
        """Hear when the brokers of a cluster have elected another leader of the log; called once is enough.

        The leader republishes what was stored. One that dies between the two leaves an event that is stored and was
        told to nobody, and whoever is connected to another broker notices nothing of it: the log is to be read again.
        """
        if self._elections or not self._connection.clustered:
            return
        self._elections = True

        def on_message(_message: Msg) -> None:
            # not all members of a large job in the same moment
            asyncio.get_running_loop().call_later(random.uniform(0.0, SPREAD), elected)

        try:
            await self._connection.listen(_ELECTED, on_message)
        except Unauthorized as error:
            _log.warning("elections among the brokers are not heard", reason=str(error))
