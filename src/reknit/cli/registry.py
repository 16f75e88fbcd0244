"""`reknit registry`: services, agents and workers, where they are and how well; now, or as it changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from reknit.core.errors import UsageError
from reknit.core.registry_entry import KINDS, Seen
from reknit.core.registry_watch import Change
from reknit.core.settings import Settings, nearest

from . import options, output
from .app import app, verb
from .look import Look, looking

ANSWER = 1.0
"""Seconds that services get to answer."""
Answers = dict[str, dict[str, Any]]
"""Id of a service -> its answer."""
group = typer.Typer(
    no_args_is_help=True, help="Services, agents and workers, and how well they are.", rich_markup_mode=None
)
app.add_typer(group, name="registry")

KindFlag = Annotated[
    list[str] | None, typer.Option("--kind", metavar="KIND", help="Only service, agent or worker (may be given again).")
]


@group.callback()
def _registry() -> None:
    """Services, agents and workers, and how well they are."""


@group.command("ls")
@verb
def ls(
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
    kind: KindFlag = None,
    as_json: options.JsonFlag = False,
) -> None:
    """List services, agents and workers: address, version, node, health, and when they were last seen."""
    kinds = _kinds(kind)
    rows = [row for row in asyncio.run(_list(options.settings(job=job, nats=nats))) if row["kind"] in kinds]
    if as_json:
        output.document(rows)
    elif not rows:
        output.note("nothing is registered: is the job running?")
    else:
        _show(rows)


@group.command("watch")
@verb
def watch(
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
    kind: KindFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line, for each change.")] = False,
) -> None:
    """Show what is registered and then each change, until Ctrl-C."""
    asyncio.run(_watch(options.settings(job=job, nats=nats), _kinds(kind), as_json=as_json))


async def _list(settings: Settings) -> list[dict[str, Any]]:
    async with looking(settings) as look:
        seen = [s for s in await look.bus.registry.read() if _concerns(look, s)]
        services = frozenset(s.entry.id for s in seen if s.entry.kind == "service" and s.health != "critical")
        answers = await look.bus.micro.ask(ANSWER, services) if look.live else {}
        return [row_of(s, answers) for s in seen] + _strangers(seen, answers)


async def _watch(settings: Settings, kinds: Sequence[str], *, as_json: bool) -> None:
    async with looking(settings) as look:
        if not look.live:
            output.note("the job's broker is not running: nothing will change")

        def tell(change: Change) -> None:
            if not _concerns(look, change.seen) or change.seen.entry.kind not in kinds:
                return
            row = {"time": time.time(), "what": change.what, **row_of(change.seen)}
            if as_json:
                output.line(row)
            else:
                output.data(_line(row))

        await look.bus.registry.watch(tell)


def _concerns(look: Look, seen: Seen) -> bool:
    return seen.entry.job in {"", look.job}


def row_of(seen: Seen, answers: Answers | None = None) -> dict[str, Any]:
    """One entry for JSON and the table.

    Args:
        seen: the entry.
        answers: of the services that were asked just now; None: nobody was asked.
    """
    entry = seen.entry
    health, reason = seen.health, seen.reason
    answer = (answers or {}).get(entry.id)
    if answers is not None and entry.kind == "service" and health != "critical":
        if answer is None:
            health, reason = "warning", f"does not answer $SRV.PING within {ANSWER:g} s"
        elif health == "passing":
            reason = f"{reason}, answers in {answer['seconds'] * 1e3:.0f} ms"
    return {
        "kind": entry.kind,
        "name": entry.name,
        "id": entry.id,
        "job": entry.job,
        "node": entry.node,
        "address": entry.address,
        "version": entry.version,
        "pid": entry.pid,
        "health": health,
        "reason": reason,
        "since": entry.since,
        "last_seen": seen.age,
    }


def _strangers(seen: Sequence[Seen], answers: Answers) -> list[dict[str, Any]]:
    """Services that answer NATS's questions and have no entry here: others' that share the broker."""
    known = {s.entry.id for s in seen}
    return [
        {
            "kind": "service",
            "name": str(said.get("name", "")),
            "id": id_,
            "job": "",
            "node": "",
            "address": "",
            "version": str(said.get("version", "")),
            "pid": 0,
            "health": "passing",
            "reason": f"only answers $SRV.PING, in {said['seconds'] * 1e3:.0f} ms",
            "since": 0.0,
            "last_seen": 0.0,
        }
        for id_, said in sorted(answers.items(), key=lambda item: (str(item[1].get("name", "")), item[0]))
        if id_ not in known
    ]


def _show(rows: Sequence[dict[str, Any]]) -> None:
    output.table(
        ("kind", "name", "node", "address", "version", "pid", "health", "seen", "why"),
        [
            (
                r["kind"],
                r["name"],
                r["node"],
                r["address"] or "-",
                r["version"],
                r["pid"] or "",
                r["health"],
                f"{r['last_seen']:.1f} s ago",
                r["reason"],
            )
            for r in rows
        ],
    )


def _line(row: dict[str, Any]) -> str:
    clock = time.strftime("%T", time.localtime(row["time"]))
    where = f" at {row['address']}" if row["address"] else ""
    how = f"{row['health']}: {row['reason']}" if row["reason"] else row["health"]
    gone = row["what"] in {"left", "gone"}
    return f"{clock}  {row['what']:<8} {row['kind']:<8} {row['name']}{where}" + ("" if gone else f"  {how}")


def _kinds(asked: list[str] | None) -> Sequence[str]:
    for kind in asked or ():
        if kind not in KINDS:
            like = nearest(kind, KINDS)
            hint = f"did you mean {like!r}? " if like else ""
            raise UsageError(f"there is no kind {kind!r}", hint=f"{hint}kinds: {', '.join(KINDS)}")
    return asked or KINDS
