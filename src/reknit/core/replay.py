"""Reading a stream from a sequence on to the newest, in order: by pulls from a consumer that the broker forgets."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence

from nats.aio.msg import Msg

from reknit.core.connection import Connection, NotAnswered
from reknit.core.inbox import new_inbox
from reknit.core.jetstream import API, call
from reknit.core.stored import Stored, place_of

_ANSWER = 5.0
_STALL = 5.0
_BATCH = 500
_BATCH_BYTES = 16 * 1024 * 1024  # more than one largest message, less than what makes the broker call us slow


async def replay(
    connection: Connection,
    stream: str,
    filters: Sequence[str],
    from_seq: int,
    sink: Callable[[Stored], None],
    *,
    headers_only: bool = False,
) -> None:
    """Give `sink` every stored message that matches one of the filters, in order, from a sequence on to the newest.

    Raises:
        NotAnswered: the connection broke or the broker stalled; what was given so far was in order and complete.
        Refused: the broker lets nobody read just now, or us never.
    """
    name = secrets.token_hex(11)
    made = await call(
        connection,
        f"CONSUMER.CREATE.{stream}.{name}",
        {
            "stream_name": stream,
            "action": "create",
            "config": {
                "name": name,
                "filter_subjects": list(filters),
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": max(from_seq, 1),
                "ack_policy": "none",
                "mem_storage": True,
                "num_replicas": 1,
                "headers_only": headers_only,
                "inactive_threshold": int(30e9),
            },
        },
        timeout=_ANSWER,
    )
    if int(made["num_pending"]):
        await _pull(connection, f"{stream}.{name}", int(made["num_pending"]), sink)
    # Not awaited on purpose: the broker forgets it by itself if this is lost.
    await connection.send(f"{API}.CONSUMER.DELETE.{stream}.{name}", reply=new_inbox())


async def _pull(connection: Connection, consumer: str, count: int, sink: Callable[[Stored], None]) -> None:
    inbox = new_inbox()
    woken = asyncio.Event()
    got, status, lost, number = 0, "", False, 0

    def on_message(message: Msg) -> None:
        nonlocal got, status
        woken.set()
        headers = message.headers or {}
        if "Status" in headers:
            # 404: no more there; 409: the next one would not fit into the bytes of this pull. The end of a pull
            # that had all its messages may be told late ("409 Batch Completed"), when the next one runs already.
            if message.subject == f"{inbox}.{number}":
                status = f"{headers['Status']} {headers.get('Description', '')}"
            return
        got += 1
        seq, at = place_of(message.reply)
        sink(Stored(message.subject, seq, headers, message.data, time=at))

    def on_lost() -> None:
        nonlocal lost
        lost = True
        woken.set()

    connection.on_lost.append(on_lost)
    listener = await connection.listen(f"{inbox}.*", on_message, bounded=False)
    try:
        while count > 0:
            got, status, number = 0, "", number + 1
            batch = min(_BATCH, count)
            pull = json.dumps({"batch": batch, "max_bytes": _BATCH_BYTES, "no_wait": True}).encode()
            await connection.send(f"{API}.CONSUMER.MSG.NEXT.{consumer}", pull, reply=f"{inbox}.{number}")
            while got < batch and not status:
                woken.clear()
                if lost:
                    raise NotAnswered("the connection broke while reading the log", "lost")
                try:
                    async with asyncio.timeout(_STALL):
                        await woken.wait()
                except TimeoutError:
                    raise NotAnswered(f"the broker stalled for {_STALL:g} s while reading the log", "late") from None
            if got == 0:
                if status.startswith("404"):
                    return  # less there than was counted: somebody removed messages by hand
                raise NotAnswered(f"reading the log ended: {status}", "lost")
            count -= got
    finally:
        connection.on_lost.remove(on_lost)
        await listener.stop()
