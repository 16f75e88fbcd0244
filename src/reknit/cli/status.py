"""`reknit status`: where a job is; without a job's name also a line for each job that is known here."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer

from reknit.core.headcount import spares_in_words, workers
from reknit.core.home import Home
from reknit.core.settings import Settings
from reknit.core.status import Status, report
from reknit.core.status_fold import hear, see

from . import options, output
from .app import app, verb
from .look import Look, looking

_LISTEN = 0.6


@app.command()
@verb
def status(
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="One line for each job known here.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Say where a job is: steps, workers, world, alerts."""
    settings = options.settings(job=job, nats=nats)
    if everything:
        _list(settings, as_json=as_json)
        return
    found, live = asyncio.run(_look(settings))
    told = told_of(found, live=live)
    if as_json:
        output.document(told)
    else:
        _show(told)


def told_of(found: Status, *, live: bool) -> dict[str, Any]:
    """A job's state as plain values; a run that nobody runs any more is `interrupted`."""
    told = report(found, time.monotonic() if live else None)
    if not live and found.spec is not None and found.finished is None:
        told["state"] = "interrupted"
    return told


async def status_of(look: Look) -> tuple[Status, bool]:
    """Fold a job's log and heartbeats; True if a launcher of it is there."""
    found = Status(look.job)
    for received in await look.log():
        found = see(found, received.event, time.monotonic(), received.time, received.seq)
    if found.finished is not None:
        return found, False
    pulses = await look.pulses(_LISTEN)
    for pulse in pulses:
        found = hear(found, pulse, time.monotonic())
    live = bool(pulses) or bool(await look.alive(list(found.nodes)))
    return found, live


async def _look(settings: Settings) -> tuple[Status, bool]:
    async with looking(settings) as look:
        return await status_of(look)


def _show(told: dict[str, Any]) -> None:
    progress, world = told["progress"], told["world"]
    output.data(f"job      {told['job']}  ({told['script'] or 'no run'})")
    state = told["state"] + (f": {told['reason']}" if told["reason"] else "")
    output.data(f"state    {state}")
    step = f"{progress['committed']}" + (f" of {progress['steps']}" if progress["steps"] else "")
    more = []
    if progress["loss"] is not None:
        more.append(f"loss {progress['loss']:.4g}")
    if progress["rate"]:
        more.append(f"{progress['rate']:,.0f} samples/s")
    if progress["seconds_left"] and told["state"] in {"running", "degraded"}:
        more.append(f"{progress['seconds_left']:.0f} s left")
    output.data("  ".join([f"steps    {step}", *more]))
    if world["generation"]:
        how = ", planned" if world["planned"] else ""
        output.data(f"world    generation {world['generation']}{how}, {_crew(world)}: {world['reason']}")
    if told["checkpoint"]["step"] >= 0:
        output.data(f"saved    step {told['checkpoint']['step']}: {told['checkpoint']['path']}")
    for worker, difference in told["inexact"].items():
        output.data(f"exact    no: {worker} takes part although {difference}")
    if awaited := [h for h in told["hosts"] if not h["nodes"]]:
        said = ", ".join(f"{h['host']} ({h['slots']} workers)" if h["slots"] else h["host"] for h in awaited)
        output.data(f"awaited  {said}")
    if told["workers"]:
        output.data("")
        rows = [
            (
                w["worker"],
                w["node"],
                w["pid"] or "",
                w["state"],
                w.get("phase", ""),
                w.get("step", ""),
                w.get("slots", ""),
                f"{w['rss'] / 2**20:.0f} MiB" if w.get("rss") else "",
                w["stuck"] or w["note"],
            )
            for w in told["workers"]
            if takes_part(told, w)
        ]
        output.table(("worker", "node", "pid", "state", "phase", "step", "slots", "memory", "note"), rows)
    if told["alerts"]:
        output.data("")
        output.table(
            ("severity", "alert", "about", "reason"),
            [(a["severity"], a["alert"], a["subject"], a["reason"]) for a in told["alerts"]],
        )


def takes_part(told: dict[str, Any], worker: dict[str, Any]) -> bool:
    """False for one that has ended as it should while the job goes on: it was scaled away, or drained."""
    return bool(told["outcome"]) or worker["state"] != "finished" or worker["worker"] in told["world"]["members"]


def _crew(world: dict[str, Any]) -> str:
    spares = world["spares"]
    return workers(world["size"] - spares) + (f" and {spares_in_words(spares)}" if spares else "")


def _list(settings: Settings, *, as_json: bool) -> None:
    """Jobs known here, newest first."""
    home = Home.at(settings.control.home)
    rows: list[dict[str, Any]] = []
    for folder in home.jobs():
        runs = [run for run in folder.runs().nodes.values() if run.launcher.alive]
        rows.append(
            {
                "job": folder.name,
                "nodes": sorted(run.node for run in runs),
                "script": runs[0].script if runs else "",
                "used": folder.used,
                "path": str(folder.path),
            }
        )
    if as_json:
        output.document(rows)
        return
    if not rows:
        output.note("no job was run here yet")
        return
    output.table(
        ("job", "runs on", "last used", "folder"),
        [
            (r["job"], ", ".join(r["nodes"]) or "-", time.strftime("%F %T", time.localtime(r["used"])), r["path"])
            for r in rows
        ],
    )
