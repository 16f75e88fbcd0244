"""`python -m reknit.worker.transport.here nccl`: whether that transport can work on this machine, before a run begins.

Nothing is said and the exit status is 0 if it can; else one line of JSON says why not (`error`, `hint`), with status 2.
"""

from __future__ import annotations

import json
import sys

from reknit.core.errors import UsageError

from .choice import available


def main() -> int:
    """Look, and say it; returns the exit status."""
    try:
        available(sys.argv[1])
    except UsageError as error:
        print(json.dumps({"error": str(error), "hint": error.hint}))  # noqa: T201 - this is what was asked for
        return UsageError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
