"""The process: the reducer on the bus."""

from __future__ import annotations

from reknit.core.service import run_process, run_service

from .decide import decide
from .view import View


def main() -> None:
    """Run the service until SIGTERM."""
    run_process("shards", run_service("shards", initial=View, decide=decide, tick=0.25, pulses=True, span="plan"))
