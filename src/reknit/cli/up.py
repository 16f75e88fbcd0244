"""`reknit up`: a broker and the four services in the background, for any number of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Annotated

import msgspec
import typer

from reknit.core import launch
from reknit.core.bus import Bus
from reknit.core.errors import ControlPlaneUnreachable, ReknitError, Unauthorized, UsageError
from reknit.core.home import ControlFolder, Home, Mark, write_private
from reknit.core.settings import ControlSettings, doc_of

from . import options, output
from .address import check_host
from .app import app, verb
from .plane import PAGE_FILE, SERVICES, STANDBY, Plane

READY = 30.0
"""Seconds until all services must answer."""
PID_FILE = "up.json"


class UpFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of up.json: what `reknit down` ends."""

    supervisor: Mark
    children: tuple[Mark, ...] = ()


def read_up(folder: ControlFolder) -> UpFile | None:
    """Read up.json, None if there is none."""
    try:
        return msgspec.json.decode((folder.path / PID_FILE).read_bytes(), type=UpFile)
    except (OSError, msgspec.MsgspecError):
        return None


@app.command()
@verb
def up(
    *,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDR", help="Address that the broker listens on; 127.0.0.1 by default."),
    ] = None,
    port: Annotated[
        str | None,
        typer.Option("--port", metavar="PORT", help="Port of the broker; 0: the one before, or a free one."),
    ] = None,
    standby: Annotated[
        bool | None, typer.Option("--standby/--no-standby", help=doc_of("standby"), show_default=False)
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay here until SIGTERM or Ctrl-C.")] = False,
) -> int:
    """Start a broker and the four services in the background; `reknit down` ends them.

    They serve any number of jobs. What dies is started again on the same store and port.
    """
    settings = options.settings(host=host, port=port, standby=standby)
    folder = Home.at(settings.control.home).up
    if settings.node.host:
        check_host(settings.node.host)
    folder.make()
    if folder.controlled:
        endpoint = folder.endpoint()
        output.note(f"up already: {endpoint.url if endpoint else folder.holder()}")
        return 0
    if foreground:
        return asyncio.run(_Supervisor(folder, settings.node.host, settings.control).run())
    return _background(folder, settings.node.host, settings.control)


def _background(folder: ControlFolder, host: str, wanted: ControlSettings) -> int:
    command = [sys.executable, "-P", "-m", "reknit.cli", "up", "--foreground"]
    command += ["--host", host] if host else []
    command += ["--port", str(wanted.port)] if wanted.port else []
    command += ["--standby"] if wanted.standby else ["--no-standby"]
    folder.endpoint_file.unlink(missing_ok=True)
    log = folder.logs / "up.log"
    with log.open("ab") as out:
        start = out.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder.path,
            start_new_session=True,
            env={**os.environ, "REKNIT_HOME": str(folder.path.parent)},
        )
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline:
        found = read_up(folder)
        if found is not None and found.supervisor.pid == process.pid:
            endpoint = folder.endpoint()
            kept = (*SERVICES, STANDBY) if wanted.standby else SERVICES
            output.note(f"up: broker {endpoint.url if endpoint else '?'}, {', '.join(kept)}")
            output.note(f"page: http://127.0.0.1:{(folder.path / PAGE_FILE).read_text().strip()}/")
            return 0
        if process.poll() is not None:
            said = log.read_bytes()[start:].decode(errors="replace").strip()
            code = process.returncode
            causes = {kind.exit_code: kind for kind in (UsageError, Unauthorized)}
            raise causes.get(code, ControlPlaneUnreachable)(f"it did not come up:\n{said[-2000:]}", hint=f"log: {log}")
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    raise ControlPlaneUnreachable(f"it did not come up within {READY:g} s", hint=f"log: {log}")


class _Supervisor:
    """Keeps the broker and the services until a signal comes."""

    def __init__(self, folder: ControlFolder, host: str, wanted: ControlSettings) -> None:
        self._folder = folder
        self._host, self._port = host, wanted.port
        self._keeper = launch.Keeper(self._noticed)
        self._plane = Plane(
            folder, folder, self._keeper, lambda text, _warning: output.note(text), standby=wanted.standby
        )
        self._code = 0
        self._up = False
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Run until SIGINT or SIGTERM.

        Raises:
            ReknitError: the broker cannot be started, or a service never answers.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        launch.adopt_orphans()
        bus = None
        try:
            if not self._plane.own("up", host=self._host, port=self._port):
                raise UsageError(f"another process keeps the broker already: {self._folder.holder()}")
            bus = await Bus.connect(self._plane.endpoint, source="up")
            await self._plane.serve(bus)
            missing = await self._ready(bus)
            if missing and not self._stop.is_set():
                raise ControlPlaneUnreachable(
                    f"these services do not answer: {', '.join(missing)}", hint=f"logs: {self._folder.logs}"
                )
            self._up = True
            self._note()
            watch = asyncio.create_task(self._plane.watch(bus, self._note))
            await self._stop.wait()
            watch.cancel()
        finally:
            if bus is not None:
                with contextlib.suppress(ReknitError):
                    await bus.close()
            await self._keeper.stop(5.0)
            self._plane.stop()
            for name in (PID_FILE, self._folder.endpoint_file.name, PAGE_FILE):
                (self._folder.path / name).unlink(missing_ok=True)
            launch.sweep()
        return self._code

    async def _ready(self, bus: Bus) -> list[str]:
        answers = asyncio.create_task(self._plane.all_answer(bus, READY - 5.0))
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({answers, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if answers.done():
            return answers.result()
        answers.cancel()
        return []

    def _signalled(self, number: int) -> None:
        if self._stop.is_set():
            self._keeper.kill()
            self._plane.kill()
        self._code = 0 if number == signal.SIGTERM else 128 + number
        self._stop.set()

    def _noticed(self, notice: launch.Notice) -> None:
        if notice.what != "started":
            output.note(str(notice))
        elif self._up:
            self._note()

    def _note(self) -> None:
        file = UpFile(supervisor=Mark.of(os.getpid(), "up"), children=(*self._plane.marks, *self._keeper.marks))
        write_private(self._folder.path / PID_FILE, msgspec.json.format(msgspec.json.encode(file), indent=2))
