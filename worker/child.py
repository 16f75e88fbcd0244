"""A worker process from its fork to the last line of the user's script: as if `python script args…` had been typed.

The agent's forkserver calls `main`. Whatever the script could see of that is put right first: process group, standard
streams, signals, environment, `sys.argv`, `sys.path`, and multiprocessing's idea that this is somebody's child.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, process
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from reknit.core.context import AGENT, ENDPOINT, WORKER, WorkerContext, from_env
from reknit.core.errors import ReknitError
from reknit.worker import courtesy
from reknit.worker.agent.guard import die_with_parent
from reknit.worker.agent.lifeline import Lifeline
from reknit.worker.failure import failure, is_the_scripts, one_line

if TYPE_CHECKING:
    from reknit.core.bus_thread import BusThread

_REPORT_SECONDS = 3.0
_MAIN_PROCESS: type = type(multiprocessing.current_process())
"""What the main process of a program is, as the forkserver sees it that loads this file; the name itself is private."""
_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Order:
    """What to run and how.

    Attributes:
        worker: id.
        context: the WorkerContext as JSON, for `REKNIT_WORKER`.
        script: path, or module name.
        args: the user's, untouched.
        module: `script` is a module's name.
        threads: intra-op threads.
        lifeline: to be held for life; the agent waits for it.
        behind: stand back until it is a member.
    """

    worker: str
    context: str
    script: str
    args: tuple[str, ...]
    module: bool
    threads: int
    lifeline: Lifeline | None = None
    behind: bool = False


class Live(Protocol):
    """What `reknit.worker.live.current()` returns: the running session."""

    bus: BusThread | None

    def failed(self, error: BaseException) -> None:
        """Say that the script raised, if that was not said."""

    def drain(self, reason: str) -> None:
        """Leave at the next step boundary."""


def main(order: Order, stdout: Connection, stderr: Connection) -> NoReturn:
    """Run the user's script in this freshly forked process; ends it with the script's exit status."""
    os.setsid()
    die_with_parent(os.getppid())
    if order.behind:
        courtesy.begin()
    if order.lifeline is not None:
        with suppress(OSError):  # then our death is noticed a little later
            order.lifeline.hold()
    _take_streams(stdout, stderr)
    _take_signals()
    _take_environment(order)
    _be_the_main_process()
    _take_threads(order.threads)
    code = _run(order)
    _leave(code)


def report_failure(error: BaseException) -> None:
    """Publish `worker.failed` through the session's connection, else through one of its own; gives up after 3 s."""
    context = from_env(WORKER, WorkerContext)
    current = _live()
    if current is not None:
        current.failed(error)  # it may have told it already, when the script left it
        _flush(current)
        return
    event = failure(error, worker=context.worker, incarnation=context.incarnation)
    bus_thread = importlib.import_module("reknit.core.bus_thread")
    bus = bus_thread.BusThread(context.endpoint, context.worker)
    bus.start()
    try:
        bus.post(context.job, event, id=f"failed/{event.worker}/{event.incarnation}")
    finally:
        bus.close(_REPORT_SECONDS)


def _flush(current: Live) -> None:
    """Let the session's outbox be sent: this process ends without the interpreter's own last calls."""
    bus = getattr(current, "bus", None)
    if bus is not None:
        bus.close(_REPORT_SECONDS)


def _run(order: Order) -> int:
    """Run the script as `__main__` and return its exit status, as the interpreter would."""
    sys.argv = [order.script, *order.args]
    try:
        if order.module:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(order.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(order.script).resolve().parent))
            runpy.run_path(order.script, run_name="__main__")
    except SystemExit as error:
        return _status(error)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it ended the script and must be told
        error.with_traceback(_users_frames(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        if is_the_scripts(error):
            _try_to_report(error)
        return 1
    return 0


def _try_to_report(error: BaseException) -> None:
    """The agent publishes our exit and last lines in any case; that this fails too is worth a line, no more."""
    try:
        report_failure(error)
    except Exception as second:  # noqa: BLE001  # it must not hide the script's own error
        print(f"reknit: the failure could not be reported: {one_line(second)}", file=sys.stderr)  # noqa: T201


def _users_frames(frames: TracebackType | None) -> TracebackType | None:
    """Drop the frames that only led to the script: this file's and runpy's."""
    first = frames
    while first is not None:
        name = first.tb_frame.f_code.co_filename
        if name != __file__ and "runpy" not in name:
            return first
        first = first.tb_next
    # a SyntaxError has no frame in the script; its text names the line
    return None


def _status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1


def _leave(code: int) -> NoReturn:
    """End as the interpreter does: threads, exit functions, streams."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are going already; in an exit function it would only raise
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    current = _live()
    if current is not None:
        # joined without `with`, and never left
        with suppress(ReknitError):
            _flush(current)
    # a forked process never comes to the interpreter's own call of it
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _take_streams(stdout: Connection, stderr: Connection) -> None:
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    stdout.close()
    stderr.close()
    # through a pipe Python would keep 8 KiB back, and the last lines before a SIGKILL with them
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # a crash in native code leaves a Python traceback in the log
    faulthandler.enable()


def _take_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what Ctrl-C means
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _drain)
    os.register_at_fork(after_in_child=_forget_drain)


def _drain(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM: leave at a step boundary if a session runs, else at once."""
    current = _live()
    if current is not None and hasattr(current, "drain"):
        current.drain("SIGTERM")
        return
    raise SystemExit(_TERMINATED)


def _forget_drain() -> None:
    """In a process that the script forks (a DataLoader's workers): SIGTERM ends it, as it would without us."""
    if signal.getsignal(signal.SIGTERM) is _drain:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _live() -> Live | None:
    """Return the running session's registration; None if there is none, or reknit was never imported that far."""
    module = sys.modules.get("reknit.worker.live")
    return cast("Live | None", module.current()) if module is not None else None


def _take_environment(order: Order) -> None:
    os.environ.pop(AGENT, None)
    os.environ.pop(ENDPOINT, None)
    os.environ[WORKER] = order.context


def _take_threads(number: int) -> None:
    """Set torch's intra-op threads: before the script runs, and so the same in all workers."""
    torch = sys.modules.get("torch")
    # libraries that were loaded under OMP_NUM_THREADS have it right already, and setting it starts a pool at once
    if torch is not None and torch.get_num_threads() != number:
        torch.set_num_threads(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # all forks would draw the same numbers
        numpy.random.seed(None)


def _be_the_main_process() -> None:
    """Let multiprocessing, and who asks it, take this process for the one that was typed.

    Otherwise the script's default start method would be `forkserver`, its logs would say `w0-1` for MainProcess, and a
    forkserver of its own would be the agent's, whose children are not ours and would outlive us.
    """
    multiprocessing.set_start_method(None, force=True)
    vars(process).update(_current_process=_MAIN_PROCESS(), _parent_process=None)
    server: Any = vars(forkserver)["_forkserver"]
    if server._forkserver_alive_fd is not None:  # noqa: SLF001
        os.close(server._forkserver_alive_fd)  # noqa: SLF001
    server._forkserver_alive_fd = server._forkserver_address = server._inherited_fds = None  # noqa: SLF001
    server._preload_modules = ["__main__"]  # noqa: SLF001
