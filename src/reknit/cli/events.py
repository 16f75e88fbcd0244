"""`reknit events` and what it shares with `reknit alerts`: the log as lines, also as it grows."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from reknit.core.bus import Received
from reknit.core.errors import UsageError
from reknit.core.events import AREAS, AnyEvent, JobFinished, kind_of
from reknit.core.settings import Settings, nearest

from . import options, output
from .app import app, verb
from .look import Look, looking

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONG = 120
Show = Callable[[Received], None]


@app.command()
@verb
def events(
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    area: Annotated[
        list[str] | None, typer.Option("--area", metavar="AREA", help="Only these areas (may be given again).")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="10m, 2h, 1d ago, or a sequence: #120.")
    ] = None,
    as_json: options.JsonLinesFlag = False,
) -> None:
    """Show what happened in a job, event by event."""
    areas = _areas(area)
    time_from, seq_from = _since(since)
    settings = options.settings(job=job, nats=nats)
    rows: list[dict[str, Any]] = []

    def show(received: Received) -> None:
        if received.seq < seq_from or received.time < time_from:
            return
        if as_json and not follow:
            rows.append(row_of(received))
        elif as_json:
            output.line(row_of(received))
        else:
            output.data(line_of(received))

    asyncio.run(told(settings, show, areas=areas, follow=follow))
    if as_json and not follow:
        output.document(rows)


async def told(settings: Settings, show: Show, *, areas: Sequence[str] | None, follow: bool) -> None:
    """Give each event of a job to `show`; with `follow` until the job is over."""
    async with looking(settings) as look:
        if follow and look.live:
            await _follow(look, show, areas)
            return
        for received in await look.log(areas):
            show(received)
        if follow:
            output.note("the job's broker is not running: nothing more will come")


async def _follow(look: Look, show: Show, areas: Sequence[str] | None) -> None:
    over = asyncio.Event()
    state = {"over": False, "live": False}

    def heard(received: Received) -> None:
        # the end of an earlier run, in the backlog, is no end
        state["over"] = isinstance(received.event, JobFinished)
        if areas is None or kind_of(received.event).partition(".")[0] in areas:
            show(received)
        if state["live"] and state["over"]:
            over.set()

    await look.bus.follow(heard, job=look.job, areas=None if areas is None else sorted({*areas, "job"}))
    state["live"] = True
    if not state["over"]:
        await over.wait()


def row_of(received: Received) -> dict[str, Any]:
    """One event for JSON."""
    return {
        "seq": received.seq,
        "time": received.time,
        "job": received.job,
        "source": received.source,
        "trace": received.trace,
        "event": output.plain(received.event),
    }


def line_of(received: Received) -> str:
    """One event as a line for people: sequence, time, kind, who said it, the fields that say something."""
    clock = time.strftime("%T", time.localtime(received.time)) + f".{int(received.time % 1 * 1000):03d}"
    kind = kind_of(received.event)
    return f"{received.seq:>6}  {clock}  {kind:<21} {received.source:<16} {_fields(received.event)}".rstrip()


def _fields(event: AnyEvent) -> str:
    plain = output.plain(event)
    nothing = {"", 0, None, -1}  # also False and 0.0
    said = []
    for name, value in plain.items():
        if name == "kind" or value in ([], {}) or (not isinstance(value, list | dict) and value in nothing):
            continue
        said.append(f"{name}={_short(name, value)}")
    return " ".join(said)


def _short(name: str, value: Any) -> str:
    if name == "members":
        return ",".join(m["worker"] for m in value)
    if name == "ranges":
        return ",".join(f"{r['worker']}:{r['first']}-{r['end']}" for r in value)
    if name == "terms":
        return f"({value['slots']} slots x {value['micro_batch']}, {value['samples']} samples)"
    if name == "evidence":
        return f"({'; '.join(e['about'] + ' ' + e['source'] for e in value)})"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value) if not isinstance(value, str) else value
    text = " | ".join(line.strip() for line in text.splitlines()) if "\n" in text else text
    text = text if len(text) <= _LONG else text[: _LONG - 1] + "…"
    return repr(text) if " " in text and isinstance(value, str) else text


def _areas(asked: list[str] | None) -> list[str] | None:
    if not asked:
        return None
    known = [name for name in AREAS if name != "heartbeat"]
    areas = [name for part in asked for name in part.split(",")]
    for name in areas:
        if name not in known:
            like = nearest(name, known)
            hint = f"did you mean {like!r}? " if like else ""
            raise UsageError(f"there is no area {name!r}", hint=f"{hint}areas: {', '.join(known)}")
    return areas


def _since(asked: str | None) -> tuple[float, int]:
    """(wall time, sequence) from which on events are shown."""
    if not asked:
        return 0.0, 0
    if match := re.fullmatch(r"#(\d+)", asked):
        return 0.0, int(match[1])
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", asked):
        return time.time() - float(match[1]) * _UNITS[match[2]], 0
    raise UsageError(f"--since {asked!r} is no time", hint="write 30s, 10m, 2h, 1d, or a sequence as #120")
