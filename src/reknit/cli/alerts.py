"""`reknit alerts`: what the monitor has raised."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer

from reknit.core.bus import Received
from reknit.core.events import Alert, JobSubmitted

from . import options, output
from .app import app, verb
from .events import row_of, told


@app.command()
@verb
def alerts(
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that are cleared.")] = False,
    as_json: options.JsonLinesFlag = False,
) -> None:
    """Show alerts that are raised now; with --all or --follow each raising and clearing."""
    log: list[Received] = []

    def show(received: Received) -> None:
        if isinstance(received.event, JobSubmitted) and not everything:
            log.clear()
        if not isinstance(received.event, Alert):
            return
        log.append(received)
        if follow and as_json:
            output.line(row_of(received))
        elif follow:
            output.data(_line(received, received.event))

    areas = ["monitor"] if everything else ["monitor", "job"]
    asyncio.run(told(options.settings(job=job, nats=nats), show, areas=areas, follow=follow))
    if follow:
        return
    open_now = {(r.event.alert, r.event.subject): r for r in log if isinstance(r.event, Alert)}
    shown = (
        log
        if everything
        else [r for r in open_now.values() if isinstance(r.event, Alert) and r.event.state == "raised"]
    )
    if as_json:
        output.document([row_of(r) for r in shown])
    elif shown:
        rows = [_row(r, r.event) for r in shown if isinstance(r.event, Alert)]
        output.table(("time", "state", "severity", "alert", "about", "reason", "suggestion"), rows)
    else:
        output.note("no alert is raised")


def _row(received: Received, alert: Alert) -> tuple[str, ...]:
    clock = time.strftime("%T", time.localtime(received.time))
    return clock, alert.state, alert.severity, alert.alert, alert.subject, alert.reason, alert.suggestion


def _line(received: Received, alert: Alert) -> str:
    clock, state, severity, name, subject, reason, suggestion = _row(received, alert)
    return f"{clock}  {state:<7} {severity:<8} {name} ({subject}): {reason}" + (
        f" ({suggestion})" if suggestion else ""
    )
