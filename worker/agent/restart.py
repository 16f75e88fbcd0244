"""Whether and when a worker that exited is started again. Pure; the job-wide budget is kept by membership."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HEALED_AFTER = 60.0
"""Seconds alive after which earlier failures are forgotten."""
LONGEST_PAUSE = 30.0
UNREGISTERED_LIMIT = 5
"""Failures in a row, none of which came as far as registering, after which the worker is given up."""


@dataclass(frozen=True, slots=True)
class Restart:
    """What follows an exit.

    Attributes:
        verdict: `again` after `pause` seconds; `done`, it ended as it should; `given_up`, it would only fail again.
        pause: seconds to wait.
        failures: failures in a row, this one included; 0 when healed or done.
        reason: in words.
    """

    verdict: Literal["again", "done", "given_up"]
    pause: float
    failures: int
    reason: str


def pause_after(failures: int) -> float:
    """Seconds to wait after this many failures in a row: 0, then 0.5, 1, 2, ... 30."""
    return 0.0 if failures <= 1 else float(min(LONGEST_PAUSE, 0.5 * 2.0 ** (min(failures, 32) - 2)))


def after_exit(code: int, *, registered: bool, ever_registered: bool, failures: int, seconds_alive: float) -> Restart:
    """Decide what follows the unexpected end of a worker process.

    Args:
        code: exit status, or minus the signal's number.
        registered: this process had registered.
        ever_registered: this worker id had registered at least once, now or before.
        failures: failures in a row before this one.
        seconds_alive: how long this process lived.
    """
    if code == 0:
        return Restart("done", 0.0, 0, "its script ended")
    count = 1 if registered and seconds_alive >= HEALED_AFTER else failures + 1
    if code > 0 and not ever_registered:
        return Restart("given_up", 0.0, count, "it failed before it ever joined, and would again")
    if not registered and count >= UNREGISTERED_LIMIT:
        return Restart("given_up", 0.0, count, f"{count} failures in a row, the last before it joined")
    pause = pause_after(count)
    return Restart("again", pause, count, "started again" + (f" in {pause:g} s" if pause else ""))
