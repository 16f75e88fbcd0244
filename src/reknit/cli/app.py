"""The `reknit` command: its verbs, and the one place where errors become exit codes."""

from __future__ import annotations

import functools
import importlib
import signal
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, ParamSpec

import typer

from reknit.core.errors import ReknitError

from . import output

P = ParamSpec("P")

_ABOUT = "Elastic data-parallel PyTorch training: workers die, join and slow down; the step in flight is finished."
_VERBS = (
    "up",
    "run",
    "down",
    "service",
    "status",
    "world",
    "nodes",
    "registry",
    "events",
    "alerts",
    "scale",
    "drain",
    "stop",
    "checkpoints",
    "ledger",
    "trace",
    "doctor",
    "config",
    "chaos",
    "sim",
)
"""One file a verb (or a group of verbs), in the order of the help."""

app = typer.Typer(
    name="reknit",
    help=_ABOUT,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)


def _version(asked: bool) -> None:
    if asked:
        output.data(f"reknit {version('reknit')}")
        raise typer.Exit


@app.callback()
def _top(
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and exit.")
    ] = False,
) -> None:
    pass


def verb(function: Callable[P, int | None]) -> Callable[P, None]:
    """Make a function a verb: what it returns, or the error it raises, becomes the exit code."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = function(*args, **kwargs) or 0
        except ReknitError as error:
            output.fail(error)
            code = error.exit_code
        except KeyboardInterrupt:
            output.note("interrupted")
            code = 128 + signal.SIGINT
        if code:
            raise typer.Exit(code)

    return guarded


def application() -> typer.Typer:
    """The command with all its verbs."""
    for name in _VERBS:
        importlib.import_module(f".{name}", __package__)
    return app


def main() -> None:
    """Entry point of the `reknit` command."""
    verbs = application()
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # named so also when started as `python -m reknit.cli`
    verbs(prog_name="reknit")
