"""The process between agent and forkserver: whatever way the agent ends, nothing of its node stays behind.

It adopts all orphans below it (PR_SET_CHILD_SUBREAPER), reaps them, and when the agent or the forkserver is gone it
kills every descendant until none is left. If the agent could not say that it goes, the guard says it (`last_will`). It
is forked before torch is loaded, and mostly sleeps.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from .kin import descendants
from .procfs import table

if TYPE_CHECKING:
    from .executor import Executor

AGENT_PID = "REKNIT_AGENT_PID"
"""Set by the agent for its forkserver alone: whose guard to be."""
AGENT_SCRATCH = "REKNIT_AGENT_SCRATCH"
"""The same: its folder for temporary files, which an agent that was killed leaves behind."""
AGENT_WILL = "REKNIT_AGENT_WILL"
"""The same: what to say when that agent ends without a word, see `last_will`."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PARENT_GONE = signal.SIGUSR1
_WATCHED = {signal.SIGCHLD, _PARENT_GONE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send us a signal when our parent process ends; at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def stand_guard(agent: int, will: str = "", scratch: str = "") -> None:
    """Fork: the child returns and becomes the forkserver, the parent never returns.

    Args:
        agent: pid of the agent, our parent.
        will: its last will, if it has one.
        scratch: its folder for temporary files.
    """
    with suppress(PermissionError):  # already a leader
        os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    adopt_orphans()
    guard = os.getpid()
    forkserver = os.fork()
    if forkserver == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        die_with_parent(guard)
        return
    try:
        # the forkserver's sockets must close when it ends, and the agent's pipes when the agent does
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        executor = _executor(agent, will) if will else None
        _watch(agent, forkserver)
        sweep()
        if executor is not None:
            executor.finish()
        if scratch and os.getppid() != agent:
            shutil.rmtree(scratch, ignore_errors=True)
    finally:
        os._exit(0)


def _executor(agent: int, will: str) -> Executor | None:
    # now, not before the fork: the forkserver need not wait for the bus's modules
    try:
        executor, last_will = (import_module(f".{name}", __package__) for name in ("executor", "last_will"))
        if (found := last_will.found(agent, will)) is None:
            return None
        text, line = found
        one: Executor = executor.Executor(text, line, agent)
        one.start()
    except Exception:  # noqa: BLE001 - no thread, no memory: others will tell, and the guard's own work goes on
        return None
    return one


def _watch(agent: int, forkserver: int) -> None:
    die_with_parent(agent, _PARENT_GONE)
    while True:
        number = signal.sigwait(_WATCHED)
        if number == _PARENT_GONE or forkserver in _reap():
            return


def sweep(spared: frozenset[int] = frozenset(), seconds: float = 10.0) -> None:
    """Kill and reap all descendants of this process, but those spared, until none is left or the time is over."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        rows = table()
        left = descendants(rows, [os.getpid()]) - spared - descendants(rows, spared)
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def _reap() -> set[int]:
    reaped: set[int] = set()
    with suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            reaped.add(pid)
    return reaped


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
