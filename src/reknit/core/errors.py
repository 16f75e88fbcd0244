"""One class a cause, each with its exit code and the next thing to do; one place turns them into exits.

Exit codes: 0 done, 1 the run failed, 2 wrong usage or input, 75 the control plane cannot be reached (sysexits'
EX_TEMPFAIL: trying again may help), 77 it is there and refuses our credentials or secret (EX_NOPERM: it cannot), 130
interrupted, 143 terminated.
"""

from __future__ import annotations


class ReknitError(Exception):
    """Base of all errors that reknit raises on purpose.

    Attributes:
        exit_code: what the command line exits with.
        hint: the next thing to do, one sentence, or empty.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # where it is shown as a traceback


class UsageError(ReknitError):
    """Wrong flags, wrong input, a file that does not exist, a name that is not allowed."""

    exit_code = 2


class RunFailed(ReknitError):
    """The run itself failed: the script raised, the restart budget is spent."""

    exit_code = 1


class ControlPlaneUnreachable(ReknitError):
    """The broker or a service does not answer."""

    exit_code = 75


class Unauthorized(ControlPlaneUnreachable):
    """The broker or the job refused our credentials; final, never retried."""

    exit_code = 77


class WireError(ReknitError):
    """Bytes that do not decode to what they should be."""


class StaleGeneration(ReknitError):
    """Something of a past generation was refused (fencing)."""


class StaleWorld(ReknitError):
    """Compare-and-set on the world log lost: somebody appended first."""


class RefusedByJob(ReknitError):
    """The job does not let this worker in; the reason names the first difference."""


class StateError(ReknitError):
    """Tracked state cannot be taken or put: an object of a kind that cannot travel, a shape that does not fit."""


class NotFinite(ReknitError, RuntimeError):
    """The gradients hold NaN or Inf, and the script asked for an error then; a RuntimeError as torch's own."""


class CheckpointError(ReknitError):
    """A checkpoint cannot be written, does not verify, or does not exist."""


class LedgerError(ReknitError):
    """The ledger does not prove that every sample was used once."""
