"""What the monitor answers over HTTP: `/` (the page), `/stream` (server-sent events), `/metrics`, `/livez`, `/readyz`.

Read-only, bound to the loopback address unless told otherwise, no file from anywhere else.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from reknit.core.status import Status, report

from .metrics import CONTENT_TYPE, Figures

EVERY = 0.5
"""Seconds between two looks for something new to send."""
KEEP_ALIVE = 15.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def application(
    statuses: Callable[[], Mapping[str, Status]], ready: Callable[[], bool], clock: Callable[[], float]
) -> Starlette:
    """Make the application.

    Args:
        statuses: gives the present status of each job, in the order in which the jobs began.
        ready: True once the log was read and while the broker is reachable.
        clock: monotonic seconds, the clock of the statuses.
    """
    figures = Figures(statuses, clock)
    html = files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    async def page(_request: Request) -> Response:
        return HTMLResponse(html, headers=_HEADERS)

    async def metrics(_request: Request) -> Response:
        return Response(figures.page(), media_type=CONTENT_TYPE)

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_request: Request) -> Response:
        return PlainTextResponse("ready\n") if ready() else PlainTextResponse("not ready\n", status_code=503)

    async def stream(request: Request) -> Response:
        job = request.query_params.get("job", "")
        said = (snapshot(statuses(), job, clock()) for _ in itertools.count())
        return StreamingResponse(_events(said), media_type="text/event-stream", headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/stream", stream),
            Route("/metrics", metrics),
            Route("/livez", livez),
            Route("/readyz", readyz),
        ]
    )


def snapshot(statuses: Mapping[str, Status], job: str, now: float) -> str:
    """Return what the page shows, as JSON: all jobs with their state, and one in full (default: the newest)."""
    jobs = [{"job": name, "state": status.state} for name, status in statuses.items()]
    status = statuses.get(job) or (list(statuses.values())[-1] if statuses and not job else None)
    shown = None
    if status is not None:
        shown = report(status, now) | {"losses": status.losses}
        shown["worlds"] = shown["worlds"][-30:]
        for worker in shown["workers"]:
            if worker.get("silent") is not None:
                worker["silent"] = int(worker["silent"])  # else each snapshot were new
    return json.dumps({"jobs": jobs, "shown": shown})


async def _events(snapshots: Iterator[str]) -> AsyncIterator[str]:
    """Send a snapshot when it differs from the one before, and a comment now and then so that the line stays open."""
    before, quiet = "", 0.0
    for text in snapshots:
        if text != before:
            yield f"data: {text}\n\n"
            before, quiet = text, 0.0
        elif quiet >= KEEP_ALIVE:
            yield ": still here\n\n"
            quiet = 0.0
        await asyncio.sleep(EVERY)
        quiet += EVERY
