"""Elastic data-parallel PyTorch training: `reknit.join()` in the script, `reknit run script.py` on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reknit.worker.session import Ring, join
    from reknit.worker.step import Step

__all__ = ["Ring", "Step", "join"]
_HOMES = {"join": "reknit.worker.session", "Ring": "reknit.worker.session", "Step": "reknit.worker.step"}


def __getattr__(name: str) -> Any:
    # torch is imported when a script joins, not when the command line starts
    if name in _HOMES:
        import importlib  # noqa: PLC0415

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'reknit' has no attribute {name!r}")
