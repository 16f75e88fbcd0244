"""Imported first by the forkserver: puts the guard in place, then loads what every worker needs.

Nothing here may start a thread: a fork copies the calling thread only, and what the others held stays locked. numpy's
BLAS starts its pool when it is loaded, so it is held to one thread.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

from .guard import AGENT_PID, AGENT_SCRATCH, AGENT_WILL, stand_guard

PRELOAD = "REKNIT_PRELOAD"
"""Modules to load instead of the usual ones, with commas between; a script that needs more than torch may name that."""
WARM = (
    "numpy",
    "torch",
    "torch._dynamo",  # the first optimizer made in a process imports it: 2 to 8 s for each worker
    "reknit",
    "reknit.core.bus_thread",
    "reknit.worker.session",
    "reknit.worker.child",
)


def _enter() -> None:
    agent, will, scratch = (os.environ.pop(name, "") for name in (AGENT_PID, AGENT_WILL, AGENT_SCRATCH))
    if agent != str(os.getppid()):
        return  # imported by somebody else, not run by the forkserver of an agent
    if sys.path and sys.path[0] == "":
        # `python -c` looks in the working directory first: a user's queue.py there is not ours to load
        del sys.path[0]
    stand_guard(int(agent), will, scratch)
    said = os.environ.get(PRELOAD)
    for name in WARM if said is None else said.replace(",", " ").split():
        _warm(name)
    # what is loaded stays for ever: a worker's garbage collector need not touch, and so copy, any of it
    gc.collect()
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    if threads > 1:
        print(f"reknit: {threads - 1} threads run in the forkserver: workers may hang", file=sys.stderr)  # noqa: T201


def _warm(name: str) -> None:
    try:
        import_module(name)
    except Exception as error:  # noqa: BLE001  # a worker that needs it raises the same, with its traceback
        if not (isinstance(error, ModuleNotFoundError) and error.name == name):
            print(f"reknit: {name} does not load: {error}", file=sys.stderr)  # noqa: T201


_enter()
