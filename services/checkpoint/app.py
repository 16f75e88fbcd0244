"""The process: runs the reducer and does on disk what it asks for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from reknit.core import log, telemetry, wire
from reknit.core.bus import Bus
from reknit.core.errors import CheckpointError
from reknit.core.events import CheckpointCommitted, CheckpointDeleted, CheckpointFailed
from reknit.core.manifest import Manifest
from reknit.core.service import run_service

from . import disk
from .decide import Commit, Sweep, decide
from .view import View

NAME = "checkpoint"
_log = log.get(NAME)


def main() -> None:
    """Run the service until SIGTERM."""
    asyncio.run(run_service(NAME, initial=View, decide=decide, act=act, pulses=True, span="assemble"))


async def act(bus: Bus, job: str, action: Any) -> None:
    """Do one action of the reducer.

    Raises:
        ControlPlaneUnreachable: done, but not announced; the reducer asks again.
    """
    match action:
        case Commit():
            await _commit(bus, job, action)
        case Sweep():
            await _sweep(bus, job, action)


async def _commit(bus: Bus, job: str, action: Commit) -> None:
    draft: Manifest = wire.decode(action.draft, Manifest)
    context = telemetry.context_from(action.trace)
    with telemetry.tracer().start_as_current_span(
        "checkpoint.commit",
        context=context,
        attributes={"reknit.job": job, "reknit.checkpoint": draft.checkpoint, "reknit.step": draft.step},
    ):
        try:
            manifest = await asyncio.to_thread(disk.commit, Path(action.directory), draft)
        except (CheckpointError, OSError) as error:
            reason = str(error) if isinstance(error, CheckpointError) else f"no manifest: {error}"
            failed = CheckpointFailed(checkpoint=draft.checkpoint, reason=reason, step=draft.step)
            await bus.publish(job, failed, id=f"{draft.checkpoint}-failed")
            return
        await _announce(bus, job, action.directory, manifest, time.monotonic() - action.began_at)


async def _sweep(bus: Bus, job: str, action: Sweep) -> None:
    try:
        swept = await asyncio.to_thread(
            disk.sweep,
            Path(action.directory),
            job,
            action.run,
            keep=action.keep,
            given_up=action.given_up,
            kept=action.kept,
        )
    except (CheckpointError, OSError) as error:  # tried again after the next checkpoint
        _log.warning("nothing is tidied up", job=job, directory=action.directory, reason=str(error))
        return
    for manifest in swept.found:
        await _announce(bus, job, action.directory, manifest, 0.0)
    for checkpoint, reason in swept.deleted:
        event = CheckpointDeleted(checkpoint=checkpoint, reason=reason)
        await bus.publish(job, event, id=f"{checkpoint}-deleted")


async def _announce(bus: Bus, job: str, directory: str, manifest: Manifest, seconds: float) -> None:
    committed = CheckpointCommitted(
        checkpoint=manifest.checkpoint,
        step=manifest.step,
        path=str(Path(directory) / job / manifest.directory),
        bytes=manifest.bytes,
        seconds=seconds,
        parent=manifest.parent,
    )
    await bus.publish(job, committed, id=f"{manifest.checkpoint}-committed")
    _log.info("checkpoint committed", job=job, checkpoint=manifest.checkpoint, step=manifest.step)
