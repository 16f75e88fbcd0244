"""Standing back: what nobody waits for takes processor time only where the training leaves some.

A newcomer boots, builds its model, takes the state in and applies results, beside workers that train on the same host;
those that teach and feed it have threads for that. Without this all of them take turns as equals, and a step of the
others lasts as much longer: 0.15 to 0.3 s for 25 M parameters on two cores, 0.04 s with it.

A thread that only ever serves others stands back for good (`stand_back`). A newcomer's process stands back as a whole
until it is a member, if the system will let it come forward again: that needs CAP_SYS_NICE, or RLIMIT_NICE
(`ulimit -e`), and for some seconds only: where all cores are busy it would hardly get in otherwise.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from pathlib import Path

import psutil

BY = 10
"""Steps of niceness: about a tenth of the share of one that does not stand back."""
PATIENCE = 10.0
"""Seconds that a process stands back at most: where all cores are busy it would not get in otherwise."""
_CAP_SYS_NICE = 23
_MOST = 19
_AUTOGROUP = Path("/proc/self/autogroup")

_before: int | None = None
_timer: threading.Timer | None = None
_lock = threading.Lock()


def stand_back() -> None:
    """Let this thread stand back until it ends."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, _behind(os.getpriority(os.PRIO_PROCESS, thread)))


def may_return(nice: int) -> bool:
    """True if this process may set its niceness back to `nice` after raising it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if soft == resource.RLIM_INFINITY or 20 - soft <= nice:
        return True
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    capable = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(capable, 16) >> _CAP_SYS_NICE & 1)


def begin() -> bool:
    """Let this process stand back, with all threads and children that it will have; False if it could not return."""
    global _before, _timer  # noqa: PLW0603  # a process has one niceness
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if not may_return(nice):
        return False
    with _lock:
        _before = nice
        _timer = threading.Timer(PATIENCE, end)
        _timer.daemon = True
    _set(nice, _behind(nice))
    _timer.start()
    return True


def end() -> None:
    """Come forward again; nothing happens in a process that does not stand back."""
    global _before
    with _lock:
        before, _before = _before, None
        if _timer is not None:
            _timer.cancel()
    if before is not None:
        _set(_behind(before), before)


def _behind(nice: int) -> int:
    return min(_MOST, nice + BY)


def _shift_group(by: int) -> None:
    """Where sessions share the processor as groups, the group's own niceness counts; it has nothing to do with ours."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        now = int(_AUTOGROUP.read_text().split()[-1])
        _AUTOGROUP.write_text(str(max(-_MOST - 1, min(_MOST, now + by))))


def _set(old: int, new: int) -> None:
    """Change the niceness of all threads of this process and its children that have the old one."""
    _shift_group(new - old)
    processes = [psutil.Process()]
    with contextlib.suppress(psutil.Error):
        processes += processes[0].children(recursive=True)
    for process in processes:
        with contextlib.suppress(OSError):
            threads = [int(p.name) for p in Path(f"/proc/{process.pid}/task").iterdir()]
            for thread in threads:
                with contextlib.suppress(OSError):
                    # one that stands back for good has another niceness, in a process that stands back too
                    if os.getpriority(os.PRIO_PROCESS, thread) == old:
                        os.setpriority(os.PRIO_PROCESS, thread, new)
