"""`reknit config show`: every setting, its value and where that comes from."""

from __future__ import annotations

import os
from typing import Any

import typer

from reknit.core.settings import env_names, unknown_env

from . import options, output
from .app import app, verb

group = typer.Typer(no_args_is_help=True, help="Settings.", rich_markup_mode=None)
app.add_typer(group, name="config")


@group.callback()
def _config() -> None:
    """Settings."""


@group.command("show")
@verb
def show(*, as_json: options.JsonFlag = False) -> None:
    """Show every setting as `reknit run` would have it here: value, source, meaning."""
    settings = options.settings()
    for variable, like in unknown_env(os.environ):
        output.warn(f"nothing reads {variable}" + (f"; did you mean {like}?" if like else ""))
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "value": value if isinstance(value, int | float | str | bool) else str(value),
            "source": source,
            "environment": list(env_names(name)),
            "meaning": meaning,
        }
        for name, value, source, meaning in settings.items()
    ]
    if as_json:
        output.document(rows)
        return
    output.table(
        ("setting", "value", "from", "meaning"),
        [(r["name"], _shown(r["name"], r["value"]), r["source"], r["meaning"]) for r in rows],
    )


def _shown(name: str, value: Any) -> str:
    if name == "nproc_per_node" and value == 0:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value != "" else "-"
