"""Flags that several verbs share; their help is what `core.settings` says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from reknit.core import settings as known
from reknit.core.settings import Settings, doc_of

JobFlag = Annotated[
    str | None,
    typer.Option("--job", "--rdzv-id", "-j", metavar="NAME", help="Name of the job; by default the most recent one."),
]
NatsFlag = Annotated[
    str | None, typer.Option("--nats", "--rdzv-endpoint", metavar="URL", help=doc_of("nats"), show_default=False)
]
JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document on stdout (JSON lines while following).")]


def settings(**flags: Any) -> Settings:
    """Resolve the settings of this process with the flags given."""
    return known.resolve(flags, os.environ, Path.cwd())
