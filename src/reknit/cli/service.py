"""`reknit service NAME`: one service in the foreground, for containers, systemd and a second one of a kind."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from reknit.core import context
from reknit.core.errors import ControlPlaneUnreachable, UsageError
from reknit.core.home import Home
from reknit.core.settings import nearest

from . import control, options
from .app import app, verb
from .plane import SERVICES


@app.command()
@verb
def service(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(SERVICES)}.", show_default=False)],
    *,
    nats: options.NatsFlag = None,
) -> int:
    """Run one service here until it is ended; it serves all jobs of its broker."""
    if name not in SERVICES:
        like = nearest(name, SERVICES)
        hint = f"did you mean {like!r}? " if like else ""
        raise UsageError(f"there is no service {name!r}", hint=f"{hint}services: {', '.join(SERVICES)}")
    settings = options.settings(nats=nats)
    if settings.control.nats:
        endpoint = control.given(settings.control.nats, settings.control.nats_replicas)
    else:
        folder = Home.at(settings.control.home).up
        known = folder.endpoint() if folder.controlled else None
        if known is None:
            raise ControlPlaneUnreachable(
                "`reknit up` is not running here", hint="start it, or say which broker with --nats"
            )
        endpoint = known
    env = {**os.environ, context.ENDPOINT: context.to_env(endpoint)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", f"reknit.services.{name}"], env)  # noqa: S606
