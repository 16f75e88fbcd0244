"""Who a worker is towards its peers."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Who this worker is, and what it proves to its peers."""

    job: str
    run: str
    node: str
    worker: str
    secret: str
