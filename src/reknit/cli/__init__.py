"""The command line, one file a verb."""

from __future__ import annotations

import os
import signal
import sys


def _interrupted(_number: int, _frame: object) -> None:
    # nothing has begun yet that would have to be ended, so nothing is unwound
    os.write(2, b"reknit: interrupted\n")
    os._exit(128 + signal.SIGINT)


def main() -> None:
    """Entry point of the `reknit` command.

    Until all is loaded Ctrl-C ends it at once, with one line; then a verb answers for it itself.
    """
    default = signal.getsignal(signal.SIGINT)
    if default is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    from .app import main as whole

    try:
        whole()
    except KeyboardInterrupt:
        sys.stderr.write("reknit: interrupted\n")
        raise SystemExit(128 + signal.SIGINT) from None


__all__ = ["main"]
