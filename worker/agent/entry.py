"""An agent as a process: its environment, its forkserver, its exit code."""

from __future__ import annotations

import os
import signal
import sys

from reknit.core import log, telemetry
from reknit.core.context import AGENT, AgentContext, from_env
from reknit.core.errors import ReknitError

from .app import supervise
from .display import Display
from .forkserver import Forkserver
from .guard import adopt_orphans
from .last_will import LastWill
from .strays import strays
from .threads import choose


def main() -> None:
    """Run an agent as this process; does not return."""
    try:
        context = from_env(AGENT, AgentContext)
        code = _run(context)
    except ReknitError as error:
        print(f"reknit agent: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)  # noqa: T201
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # multiprocessing would wait for ever, at the interpreter's exit, for a worker that the kernel does not let go
    os._exit(code)


def _run(context: AgentContext) -> int:
    os.environ.pop(AGENT, None)
    log.setup("agent", node=context.node)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    display = Display()
    threads = _prepare_environment(context, display)
    adopt_orphans()
    forkserver = Forkserver(LastWill.write(context.endpoint, context.job, context.node))
    # from here on it loads torch, while we connect
    forkserver.ensure_running()
    telemetry.setup("reknit-agent")
    try:
        return supervise(context, forkserver, display, threads)
    finally:
        forkserver.stop(2.0)
        telemetry.flush()
        display.close(2.0)


def _prepare_environment(context: AgentContext, display: Display) -> int:
    """Make the environment that all workers inherit; return their number of threads."""
    found = strays(os.environ)
    for name in found:
        del os.environ[name]
    if found:
        display.say(context.node, f"removed from the workers' environment, set by another launcher: {', '.join(found)}")
    threads = choose(context.threads, os.environ)
    # read once by the libraries when the forkserver loads them
    os.environ["OMP_NUM_THREADS"] = str(threads.number)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    display.say(context.node, f"{threads.number} intra-op thread{'s' * (threads.number > 1)} a worker ({threads.why})")
    return threads.number
