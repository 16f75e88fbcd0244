"""`reknit down`: end what `reknit up` started, exactly that."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from reknit.core import setting_kinds as kinds
from reknit.core.errors import ReknitError
from reknit.core.home import ControlFolder, Home, Mark

from . import control, options, output
from .app import app, verb
from .plane import PAGE_FILE
from .up import PID_FILE, read_up

GRACE = 15.0


@app.command()
@verb
def down(
    *,
    within: Annotated[
        float,
        typer.Option(
            "--within",
            metavar="SECONDS",
            parser=options.value(kinds.number(0)),
            help="What is left after so long is killed.",
        ),
    ] = GRACE,
) -> int:
    """End the broker and the services that `reknit up` started; jobs' logs stay and can be read."""
    home = Home.at(options.settings().control.home)
    folder = home.up
    found = read_up(folder)
    if found is None and not folder.controlled:
        _clean(folder)
        own = [job.name for job in home.jobs() if job.controlled]
        more = f" ({', '.join(own)}: with a broker of their own; reknit stop --job NAME ends a job)" if own else ""
        output.note(f"nothing to end: `reknit up` is not running here{more}")
        return 0
    using = [job.name for job in home.jobs() if _uses(home, job.name)]
    if using:
        output.warn(
            f"{', '.join(using)} still use{'s' if len(using) == 1 else ''} this broker: workers train on, "
            "but no change of the world can be decided until `reknit up` runs again"
        )
    marks = [] if found is None else [found.supervisor, *found.children]
    holder = _holder(folder)
    if holder is not None:
        marks.insert(0, holder)
    left = _end(marks, within)
    _clean(folder)
    if left:
        raise ReknitError(f"could not be ended: {', '.join(f'{m.what} (pid {m.pid})' for m in left)}")
    output.note("down: the broker and the services of `reknit up` have ended")
    return 0


def _uses(home: Home, job: str) -> bool:
    folder = home.job(job)
    return control.folder_of(home, folder) == home.up and bool(folder.claimed())


def _holder(folder: ControlFolder) -> Mark | None:
    """A supervisor that is only just coming up has not written its file yet, but holds the lock."""
    if not folder.controlled:
        return None
    what, _, pid = folder.holder().partition(" ")
    return Mark.of(int(pid), what) if what == "up" and pid.isdigit() else None


def _end(marks: list[Mark], within: float) -> list[Mark]:
    """End the first one politely, it ends the others; what lives after that is killed. Returns what would not die."""
    for mark in marks[:1]:
        _signal(mark, signal.SIGTERM)
    _wait(marks, within)
    for mark in marks:
        _signal(mark, signal.SIGKILL)
    return _wait(marks, 3.0)


def _signal(mark: Mark, number: int) -> None:
    if not mark.alive:
        return
    try:
        os.kill(mark.pid, number)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise ReknitError(f"{mark.what} (pid {mark.pid}) belongs to another user") from error


def _wait(marks: list[Mark], within: float) -> list[Mark]:
    deadline = time.monotonic() + within
    while (left := [mark for mark in marks if mark.alive]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _clean(folder: ControlFolder) -> None:
    for name in (PID_FILE, folder.endpoint_file.name, PAGE_FILE):
        (folder.path / name).unlink(missing_ok=True)
