"""The command line, one file a verb."""

from .app import main

__all__ = ["main"]
