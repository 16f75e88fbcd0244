"""What the kernel says of processes and memory, read from /proc and /sys/fs/cgroup."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .stuck import Look

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
_PF_EXITING = 0x4
_SIGKILL = 1 << (signal.SIGKILL - 1)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the process table.

    Attributes:
        parent: pid of its parent.
        session: its session id.
        started: kernel's start time, clock ticks since boot: with the pid it names one process for ever.
        state: kernel's state letter.
    """

    parent: int
    session: int
    started: int
    state: str


def table() -> dict[int, Entry]:
    """Return all processes of the machine, by pid."""
    rows: dict[int, Entry] = {}
    for name in os.listdir(_PROC):  # noqa: PTH208  # names only, hundreds of them
        if name.isdecimal() and (row := entry(int(name))) is not None:
            rows[int(name)] = row
    return rows


def entry(pid: int) -> Entry | None:
    """Return one process's row, None if it is gone."""
    text = _read(_PROC / str(pid) / "stat")
    # the name in brackets may hold anything, brackets too
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Entry(parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]), state=fields[0])


def is_ending(pid: int) -> bool:
    """True if the kernel has begun to end the process's main thread, or nothing is left of the process."""
    text = _read(_PROC / str(pid) / "stat")
    fields = text[text.rfind(")") + 2 :].split()
    return len(fields) < 7 or fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def is_doomed(pid: int) -> bool:
    """True if the process was sent SIGKILL, also while the kernel has not got round to it."""
    for line in _read(_PROC / str(pid) / "status").splitlines():
        if line.startswith(("SigPnd:", "ShdPnd:")) and int(line.split()[1], 16) & _SIGKILL:
            return True
    return is_ending(pid)


def look(pid: int) -> Look | None:
    """Return the state of a process's main thread, None if it is gone."""
    letter, switches = "", 0
    for line in _read(_PROC / str(pid) / "status").splitlines():
        if line.startswith("State:"):
            letter = line.split()[1]
        elif "ctxt_switches:" in line:
            switches += int(line.split()[1])
    return Look(letter, switches) if letter else None


def environment_of(pid: int, name: str) -> str:
    """Return a variable of the environment that a process was executed with; empty if it has none."""
    for pair in _read(_PROC / str(pid) / "environ").split("\0"):
        key, _, value = pair.partition("=")
        if key == name:
            return value
    return ""


def memory_available() -> int:
    """Bytes that can be had without swapping; 0 if the kernel does not say."""
    for line in _read(_PROC / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def cores() -> int:
    """Cores that this process may use: its affinity, and its cgroup's quota if that is less."""
    allowed = len(os.sched_getaffinity(0))
    for quota_file in _own_cgroup_files("cpu.max", "cpu", "cpu.cfs_quota_us"):
        quota, _, period = _read(quota_file).strip().partition(" ")
        period = period or _read(quota_file.with_name("cpu.cfs_period_us")).strip()
        if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
            allowed = min(allowed, max(1, -(-int(quota) // int(period))))
    return allowed


def oom_kills() -> int:
    """How many processes of our own cgroup the kernel's OOM killer has killed so far; 0 if the kernel does not say."""
    count = 0
    for events in _own_cgroup_files("memory.events", "memory", "memory.oom_control"):
        count += _counter(events, "oom_kill")
    return count


def machine_oom_kills() -> int:
    """How many processes of the whole machine it has killed so far."""
    return _counter(_PROC / "vmstat", "oom_kill")


def _own_cgroup_files(name: str, controller: str, old_name: str) -> Iterable[Path]:
    """Yield the file of our cgroup in version 2 (`name`) and in version 1 (`old_name`), those that exist."""
    for line in _read(_PROC / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            file = _CGROUP / path.lstrip("/") / name
        elif controller in controllers.split(","):
            file = _CGROUP / controller / path.lstrip("/") / old_name
        else:
            continue
        if file.exists():
            yield file


def _counter(file: Path, key: str) -> int:
    for line in _read(file).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdecimal():
            return int(value)
    return 0


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # the process is gone, or the kernel has no such file: both are answers
        return ""
