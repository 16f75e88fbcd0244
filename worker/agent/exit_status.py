"""What an exit status means, in words a person can act on."""

from __future__ import annotations

import signal


def signal_name(code: int) -> str:
    """Return `SIGKILL` for -9; empty for an exit that no signal caused."""
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def in_words(code: int, *, out_of_memory: bool = False, machine_short: bool = False) -> str:
    """Describe an exit.

    Args:
        code: exit status, or minus the signal's number.
        out_of_memory: the OOM killer's counter of our own cgroup rose meanwhile.
        machine_short: the machine's counter rose, though it may have been another process.
    """
    if code >= 0:
        return f"exited with code {code}"
    words = f"killed by signal {-code} ({signal_name(code)})"
    if out_of_memory:
        return f"{words}, out of memory: the kernel's OOM killer chose it"
    if code == -signal.SIGKILL:
        if machine_short:
            return f"{words}, probably out of memory: the kernel's OOM killer ran on this machine meanwhile"
        return f"{words}, possibly out of memory"
    return words
