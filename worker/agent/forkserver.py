"""Workers are forked from a process that has torch loaded: tens of milliseconds instead of seconds.

The standard library's forkserver does it; this wraps the few things that it leaves open: who guards it (`preload`),
pipes for stdout and stderr, and an exit status that is also right when the forkserver itself was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver as stdlib
from multiprocessing import resource_tracker, util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from time import monotonic, sleep

from reknit.worker import child

from .guard import AGENT_PID, AGENT_SCRATCH, AGENT_WILL, sweep
from .last_will import LastWill

_PRELOAD = "reknit.worker.agent.preload"


@dataclass(slots=True)
class Hand:
    """A living worker process, and our ends of its pipes.

    Attributes:
        pid: its process id.
        stdout: what it writes there; raw bytes, non-blocking.
        stderr: the same.
        process: the standard library's handle.
        took: seconds from the request to the pid.
    """

    pid: int
    stdout: Connection
    stderr: Connection
    process: ForkServerProcess
    took: float

    @property
    def sentinel(self) -> int:
        """File descriptor that becomes readable when the process has been reaped, or the forkserver was killed."""
        return self.process.sentinel


class Forkserver:
    """The warm process and its guard."""

    def __init__(self, will: LastWill | None = None) -> None:
        """Prepare.

        Args:
            will: what the guard says if this process, the agent, ends without a word.
        """
        self.will = will
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([_PRELOAD])
        self._stopped = False
        self.lost = False
        """The forkserver ended without being asked."""

    @property
    def guard(self) -> int:
        """Pid of the guard, 0 if there is none. The forkserver is its child."""
        pid: int | None = stdlib._forkserver._forkserver_pid  # type: ignore[attr-defined]  # noqa: SLF001
        return pid or 0

    def ensure_running(self) -> None:
        """Start guard and forkserver if they do not run; returns at once, loading takes seconds.

        To be called from the agent's main thread: the guard ends with the thread that started it.
        """
        told = {
            AGENT_PID: str(os.getpid()),
            AGENT_WILL: self.will.text if self.will is not None else "",
            AGENT_SCRATCH: util.get_temp_dir(),
        }
        os.environ.update(told)
        try:
            stdlib.ensure_running()
        finally:
            for name in told:
                del os.environ[name]

    def fork(self, order: child.Order) -> Hand:
        """Fork a worker; blocks until the forkserver has loaded everything and forked.

        Raises:
            OSError: no process can be made.
            EOFError: the forkserver ended.
        """
        began = monotonic()
        out, out_end = self._context.Pipe(duplex=False)
        err, err_end = self._context.Pipe(duplex=False)
        try:
            process = self._context.Process(target=child.main, args=(order, out_end, err_end), name=order.worker)
            process.start()
        except BaseException:
            out.close()
            err.close()
            raise
        finally:
            out_end.close()
            err_end.close()
        for end in (out, err):
            os.set_blocking(end.fileno(), False)
        assert process.pid is not None
        return Hand(process.pid, out, err, process, monotonic() - began)

    def exit_code(self, hand: Hand) -> int | None:
        """Return the exit status, or minus the signal's number; None while it runs. To be called until it is known."""
        if not wait([hand.sentinel], 0):
            return None
        try:
            code = int(stdlib.read_signed(hand.sentinel))
        except (OSError, EOFError):
            # nobody is left who could tell: the forkserver was killed, and the kernel killed its workers with it
            self.lost = True
            code = -signal.SIGKILL
        hand.process.join(0)
        return code

    def recover(self) -> None:
        """Start guard and forkserver again, once `ended`; from the main thread."""
        tracker: int | None = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]  # noqa: SLF001
        if not self._alive():
            # a guard that was killed has swept nothing: its orphans are ours now
            sweep(frozenset(pid for pid in (tracker, self.guard) if pid), seconds=1.0)
        self.ensure_running()
        self.lost = False

    def stop(self, seconds: float) -> bool:
        """End guard, forkserver and whatever is below them. False if it is still there after so many seconds."""
        if self._stopped:
            return not self._alive()
        self._stopped = True
        if self.guard:
            with suppress(ProcessLookupError):
                os.kill(self.guard, signal.SIGUSR1)
        ended = self.ended(seconds)
        # the folder of the forkserver's socket: the interpreter's last calls, which would do it, are not made
        shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
        return ended

    def ended(self, seconds: float) -> bool:
        """Wait until the guard has ended, by itself; False if it is still there after so many seconds."""
        give_up = monotonic() + seconds
        while self._alive():
            if monotonic() > give_up:
                return False
            sleep(0.002)
        return True

    def _alive(self) -> bool:
        if not self.guard:
            return False
        try:
            # without reaping: the standard library does that when it starts the next one
            ended = os.waitid(os.P_PID, self.guard, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return ended is None
