"""What the owner of a node should know of the others."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Happening:
    """Something that the owner should know.

    joined, gone: a member came, died or left · suspected, refuted · report: `silent` or `sick` changed, tell it now ·
    superseded: a later process has this node's name.
    """

    what: Literal["joined", "gone", "suspected", "refuted", "report", "superseded"]
    name: str = ""
    detail: str = ""
