"""The process: the reducer on the bus, the sinks of its alerts, the status answer and the page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from reknit.core import log
from reknit.core.address import join
from reknit.core.address_family import family_of
from reknit.core.bus import Bus
from reknit.core.errors import UsageError
from reknit.core.service import Runner, run_process, run_service
from reknit.core.status import Status, report

from .decide import Notify, decide
from .page import application
from .view import View
from .webhook import ENV, Webhook

PORT = "REKNIT_MONITOR_PORT"
PORT_FILE = "REKNIT_MONITOR_PORT_FILE"
HOST = "REKNIT_MONITOR_HOST"
BIND_AGAIN = 5.0
_log = log.get("monitor")


def main() -> None:
    """Run the service until SIGTERM."""
    run_process("monitor", _run())


async def _run() -> None:
    webhook = Webhook(os.environ.get(ENV, ""))

    async def act(_bus: Bus, job: str, action: Any) -> None:
        assert isinstance(action, Notify)
        notify(webhook, job, action)

    @contextlib.asynccontextmanager
    async def beside(bus: Bus, runner: Runner[View]) -> AsyncIterator[None]:
        await bus.serve("monitor", "status", _status_answer(runner))
        async with webhook.sending(), _page(bus, runner):
            yield

    await run_service(
        "monitor",
        initial=lambda job: View(Status(job)),
        decide=decide,
        tick=0.25,
        pulses=True,
        act=act,
        beside=beside,
        span="alert",
    )


def notify(webhook: Webhook, job: str, action: Notify) -> None:
    """Tell people of an alert that is on the log: a line in the service's log, and the webhook."""
    alert = action.alert
    fields = {"job": job, "alert": alert.alert, "subject": alert.subject, "number": alert.number}
    grave = alert.state == "raised" and alert.severity != "info"
    say = _log.warning if grave else _log.info
    say(f"alert {alert.state}: {alert.reason}", **fields, severity=alert.severity)
    body = {**fields, "state": alert.state, "severity": alert.severity, "reason": alert.reason}
    webhook.put(action.id, body | {"suggestion": alert.suggestion})


def statuses(runner: Runner[View]) -> dict[str, Status]:
    """Return the present status of each job."""
    return {job: view.status for job, view in runner.states.items()}


def _status_answer(runner: Runner[View]) -> Any:
    async def answer(question: bytes) -> bytes:
        job = question.decode()
        if not runner.ready:
            raise UsageError("the monitor is still reading the log", hint="ask again in a moment")
        status = statuses(runner).get(job)
        if status is None:
            return json.dumps({"job": job, "state": "unknown", "known": sorted(runner.states)}).encode()
        return json.dumps(report(status, time.monotonic())).encode()

    return answer


# -- the page ----------------------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """A server that leaves signals to the service it is part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


@contextlib.asynccontextmanager
async def _page(bus: Bus, runner: Runner[View]) -> AsyncIterator[None]:
    """Serve the page while inside; that it cannot be served never ends the monitor."""
    app = application(lambda: statuses(runner), lambda: runner.ready and bus.connected, time.monotonic)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(_serve(server, runner))
    try:
        yield
    finally:
        if server.started:
            server.should_exit = True
            await asyncio.wait({task}, timeout=3.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _serve(server: _Server, runner: Runner[View]) -> None:
    host = os.environ.get(HOST, "127.0.0.1")
    while True:
        try:
            listener = listen(host, os.environ.get(PORT, "0"))
            break
        except UsageError as error:
            _log.error("no page", reason=str(error), hint=error.hint)
            await asyncio.sleep(BIND_AGAIN)
    port = listener.getsockname()[1]
    runner.about["http"] = f"http://{join(host, port)}"
    runner.about["port"] = port
    write_port(port)
    _log.info("page", url=runner.about["http"])
    await server.serve(sockets=[listener])


def listen(host: str, port: str) -> socket.socket:
    """Return a listening socket; port 0: a free one.

    Raises:
        UsageError: no number, or the port is taken; the text names port and option.
    """
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{PORT} is {port!r}, no port number", hint="0 picks a free port")
    try:
        listener = socket.socket(family_of(host))
    except OSError as error:
        raise UsageError(f"cannot listen on {host!r}: {error.strerror}", hint=f"set {HOST}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(port)))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {join(host, int(port))}: {error.strerror}", hint=f"set {PORT}; 0 picks a free port"
        ) from error
    listener.setblocking(False)
    return listener


def write_port(port: int) -> None:
    """Write the port into the file that REKNIT_MONITOR_PORT_FILE names, all at once."""
    name = os.environ.get(PORT_FILE, "")
    if not name:
        return
    path = Path(name)
    try:
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(f"{port}\n")
        fresh.replace(path)
    except OSError as error:
        _log.warning("port not written", file=name, reason=str(error))
