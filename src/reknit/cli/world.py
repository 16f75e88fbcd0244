"""`reknit world`: who takes part now, in ring order; with --history every world of the run and why it came."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer

from reknit.core.bus import Received
from reknit.core.events import JobSubmitted, RingRecovered, WorkerRegistered, WorldChanged
from reknit.core.headcount import TO_GET_ONE, spares_of
from reknit.core.settings import Settings
from reknit.core.status import Status

from . import options, output
from .app import app, verb
from .look import looking
from .status import status_of, told_of


@app.command()
@verb
def world(
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
    history: Annotated[bool, typer.Option("--history", help="Every world of the newest run.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Show the world: its members in ring order, why it is as it is, on what evidence."""
    settings = options.settings(job=job, nats=nats)
    if not history and not as_json:
        found, live = asyncio.run(_newest(settings))
        if found.world is not None:
            _show(found.world, told_of(found, live=live))
        else:
            output.note("there is no world yet: no worker has registered")
        return
    log = asyncio.run(_look(settings))
    worlds = [(r.event, r.time) for r in log if isinstance(r.event, WorldChanged)]
    recovered = {r.event.generation: r.event.seconds for r in log if isinstance(r.event, RingRecovered)}
    if not history:
        output.document(output.plain(worlds[-1][0]) if worlds else None)
        return
    slots = next((r.event.terms.slots for r in log if isinstance(r.event, WorkerRegistered)), 0)
    _history(worlds, recovered, slots, as_json=as_json)


async def _newest(settings: Settings) -> tuple[Status, bool]:
    async with looking(settings) as look:
        return await status_of(look)


async def _look(settings: Settings) -> list[Received]:
    async with looking(settings) as look:
        log = await look.log(["job", "world", "ring", "worker"])
    begin = max((i for i, r in enumerate(log) if isinstance(r.event, JobSubmitted)), default=0)
    return log[begin:]


def _show(now: WorldChanged, told: dict[str, Any]) -> None:
    # the state is the one that `reknit status` says
    state = told["state"] + (f" ({told['reason']})" if told["state"] == "degraded" else "")
    output.data(f"generation {now.generation}, {state}{_planned(now)}: {now.reason}")
    if now.awaiting and told["state"] == "paused":
        output.data(f"waiting for {now.awaiting}: {TO_GET_ONE}")
    if now.members:
        rows = [(i, m.worker, m.node, m.role, m.pid, m.address) for i, m in enumerate(now.members)]
        output.table(("ring", "worker", "node", "role", "pid", "address"), rows)
    if now.evidence:
        output.data("")
        rows_of = [(e.about, e.source, e.observer, "certain" if e.certain else "", e.detail) for e in now.evidence]
        output.table(("about", "evidence", "observer", "weight", "detail"), rows_of)


def _planned(world: WorldChanged) -> str:
    """Planned: nobody was lost, the step in flight ended in the world before."""
    return ", planned" if world.planned else ""


def _history(
    worlds: list[tuple[WorldChanged, float]], recovered: dict[int, float], slots: int, *, as_json: bool
) -> None:
    if as_json:
        output.document(
            [{**output.plain(w), "time": at, "recovered_seconds": recovered.get(w.generation)} for w, at in worlds]
        )
        return
    rows = []
    for w, at in worlds:
        seconds = recovered.get(w.generation)
        rows.append(
            (
                w.generation,
                time.strftime("%T", time.localtime(at)),
                w.status + _planned(w),
                len(w.members) - spares_of(w.members, slots),
                spares_of(w.members, slots),
                f"{seconds * 1000:.0f} ms" if seconds is not None else "",
                w.reason + (f"; waiting for {w.awaiting}" if w.awaiting else ""),
            )
        )
    output.table(("generation", "time", "status", "workers", "spares", "recovered", "reason"), rows)
