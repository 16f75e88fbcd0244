"""`reknit checkpoints ls`: what a job could be restored from; read from disk, only a given broker is asked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from reknit.core.errors import CheckpointError
from reknit.core.events import JobSubmitted
from reknit.core.home import Home
from reknit.core.manifest import Listed, list_manifests, verify
from reknit.core.settings import Settings

from . import options, output
from .app import app, verb
from .look import asks_broker, folder_here, looking

group = typer.Typer(no_args_is_help=True, help="Look at checkpoints.", rich_markup_mode=None)
app.add_typer(group, name="checkpoints")


@group.command("ls")
@verb
def ls(
    *,
    job: options.JobFlag = None,
    nats: options.NatsFlag = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-dir", metavar="DIR", help="Folder that the run was given; by default the one it used."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--verify", help="Read every file and compare its hash.")] = False,
    as_json: options.JsonFlag = False,
) -> int:
    """List the checkpoints of a job, the newest first; with --verify exit code 1 if one is damaged."""
    settings = options.settings(job=job, nats=nats, checkpoint_dir=checkpoint_dir)
    name, where = _place(settings)
    rows = [_row(listed, check=check) for listed in list_manifests(where, name) if not listed.foreign]
    if as_json:
        output.document(rows)
    elif rows:
        columns = ("step", "id", "number", "run", "time", "size", "state", "problem")
        output.table(columns, [tuple(_cell(row, column) for column in columns) for row in rows])
    else:
        output.note(f"no checkpoint of job {name} in {where}")
    return CheckpointError.exit_code if any(row["state"] == "damaged" for row in rows) else 0


def _place(settings: Settings) -> tuple[str, Path]:
    """The job's name, and the folder of all jobs' checkpoints that has its own."""
    name, where = settings.job.job, settings.checkpoint.checkpoint_dir
    if not (name and where):  # else checkpoints of another machine's job, perhaps
        name, known = asyncio.run(_told(settings)) if asks_broker(settings) else _here(settings)
        where = where or known
    return name, Path(where).expanduser().absolute()


def _here(settings: Settings) -> tuple[str, str]:
    folder = folder_here(Home.at(settings.control.home), settings.job.job)
    return folder.name, folder.checkpoint_dir()


async def _told(settings: Settings) -> tuple[str, str]:
    """What the broker that was given says: the job's newest run names its folder."""
    async with looking(settings) as look:
        specs = [r.event for r in await look.log(["job"]) if isinstance(r.event, JobSubmitted)]
        return look.job, specs[-1].checkpoint_dir if specs else look.folder.checkpoint_dir()


def _row(listed: Listed, *, check: bool) -> dict[str, Any]:
    manifest, problem = listed.manifest, listed.problem
    state = "damaged" if problem else "committed"
    if check and not problem:
        try:
            verify(listed.path)
            state = "verified"
        except CheckpointError as error:
            state, problem = "damaged", str(error)
    return {
        "step": manifest.step if manifest else None,
        "id": manifest.checkpoint if manifest else None,
        "number": manifest.number if manifest else None,
        "run": manifest.run if manifest else None,
        "epoch": manifest.epoch if manifest else None,
        "generation": manifest.generation if manifest else None,
        "time": manifest.created if manifest else None,
        "size": manifest.bytes if manifest else None,
        "pinned": listed.pinned,
        "path": str(listed.path),
        "state": state,
        "problem": problem,
    }


def _cell(row: dict[str, Any], column: str) -> str:
    value = row[column]
    if value is None:
        return "?"
    if column == "time":
        return time.strftime("%F %T", time.localtime(value))
    if column == "size":
        return f"{value / 2**20:.1f} MiB" if value >= 2**20 else f"{value / 1024:.1f} KiB"
    return f"{value}" + (" (pinned)" if column == "state" and row["pinned"] else "")
