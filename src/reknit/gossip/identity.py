"""Who a node of the gossip is."""

from __future__ import annotations

import dataclasses

from reknit.core.address import Address


@dataclasses.dataclass(frozen=True, slots=True)
class Self:
    """Who this node is.

    Attributes:
        name: of the node, unique in the job.
        epoch: start of this process, milliseconds since 1970: a later process of this name has a greater one.
        address: where it listens, as others reach it.
    """

    name: str
    epoch: int
    address: Address
