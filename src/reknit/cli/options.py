"""Flags that several verbs share; their help is what `core.settings` says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from reknit.core import setting_kinds as kinds
from reknit.core import settings as known
from reknit.core.settings import Settings, doc_of

JobFlag = Annotated[
    str | None,
    typer.Option("--job", "--rdzv-id", "-j", metavar="NAME", help="Name of the job; by default the most recent one."),
]
NatsFlag = Annotated[
    str | None, typer.Option("--nats", "--rdzv-endpoint", metavar="URL", help=doc_of("nats"), show_default=False)
]
JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
JsonLinesFlag = Annotated[
    bool, typer.Option("--json", help="One JSON document on stdout; with --follow one line an event.")
]


def value(kind: kinds.Parse) -> Callable[[str | float], Any]:
    """Read what was typed as a value of a kind; an error names the flag, the value and what it must be."""

    def parse(said: str | float) -> Any:
        try:
            return kind(said)
        except kinds.Unfit as error:
            raise typer.BadParameter(f"{said!r} {error}") from None

    return parse


def settings(**flags: Any) -> Settings:
    """Resolve the settings of this process with the flags given."""
    return known.resolve(flags, os.environ, Path.cwd())
