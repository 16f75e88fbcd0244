"""`python -m reknit.services.shards`."""

from __future__ import annotations

from .app import main

main()
