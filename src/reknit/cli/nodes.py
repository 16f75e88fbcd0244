"""`reknit nodes`: each node of a job: is it there, how often did it come back, is it kept out, why and until when."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from reknit.core.settings import Settings
from reknit.core.status_fold import hear
from reknit.core.status_nodes import nodes as rows_of

from . import options, output
from .app import app, verb
from .look import looking
from .status import status_of

_PATIENCE = 3.0
"""Seconds in which a heartbeat is waited for before a node is called silent."""


@app.command()
@verb
def nodes(*, job: options.JobFlag = None, nats: options.NatsFlag = None, as_json: options.JsonFlag = False) -> None:
    """Show the nodes of a job: up, silent, gone since when and why, or kept out until when and why."""
    found = asyncio.run(_look(options.settings(job=job, nats=nats)))
    if as_json:
        output.document(found)
    elif not found:
        output.note("no node has joined yet")
    else:
        output.table(
            ("node", "host", "state", "workers", "in world", "restarts", "flaps", "kept out until", "seen", "reason"),
            [row(node, time.time()) for node in found],
        )


async def _look(settings: Settings) -> list[dict[str, Any]]:
    async with looking(settings) as look:
        status, live = await status_of(look)
        if any(node.up and node.heard is None for node in status.nodes.values()):
            for pulse in await look.pulses(_PATIENCE):
                status, live = hear(status, pulse, time.monotonic()), True
    return rows_of(status, time.monotonic(), time.time() if live else None, live=live)


def row(node: dict[str, Any], wall: float) -> tuple[object, ...]:
    """One line of the table.

    Args:
        node: as `core.status_nodes.nodes` tells it.
        wall: seconds since the epoch.
    """
    until = max(node["held_until"], node["quarantined_until"])
    kept = f"{time.strftime('%T', time.localtime(until))} ({until - wall:.0f} s)" if until > wall else ""
    heard = node["silent"]
    # heartbeats are not kept: of who is not heard while we listen only what it said in the log is known
    seen = f"{heard:.1f} s ago" if heard is not None else f"last event {_clock(node['seen'])}" if node["seen"] else ""
    since = _clock(node["gone_at"]) if not node["up"] else ""
    return (
        node["node"],
        node["host"],
        f"{node['state']} since {since}" if since else node["state"],
        node["workers"],
        node["members"],
        node["restarts"],
        node["flaps"],
        kept if node["state"] != "gone" else "",
        seen,
        node["reason"],
    )


def _clock(at: float) -> str:
    return time.strftime("%T", time.localtime(at)) if at else ""
