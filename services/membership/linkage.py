"""Which links of the ring could be made, and which could not, since the last step was committed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TypeAlias

from reknit.core.events import Member, RingBroken

Link: TypeAlias = tuple[str, str]
"""Who dials, and whom. A path that is cut fails both ways; a firewall may let one of them through."""


@dataclasses.dataclass(frozen=True, slots=True)
class Linkage:
    """What rings that were tried one after the other, without a step between them, have told of the network.

    A link that was made and broke says nothing here: only one that cannot be made is evidence of a path that is not
    there. When a step is committed, everything is forgotten: the network is what it is today.

    Attributes:
        unmade: links that could not be made, once or more often.
        made: links of the same rings of which nobody said so.
    """

    unmade: frozenset[Link] = frozenset()
    made: frozenset[Link] = frozenset()

    def after(self, members: Sequence[Member], breaks: Sequence[RingBroken]) -> Linkage:
        """Return it with one more ring of these members, which ended with these reports."""
        told = frozenset((b.worker, b.peer) for b in breaks if b.unmade)
        if not told:
            return self
        unmade = self.unmade | told
        return Linkage(unmade, (self.made | links(members)) - unmade)

    def among(self, workers: Collection[str]) -> Linkage:
        """Return what is known of the links between these workers."""
        unmade, made = (
            frozenset((a, b) for a, b in some if a in workers and b in workers) for some in (self.unmade, self.made)
        )
        return Linkage(unmade, made)


def links(members: Sequence[Member]) -> frozenset[Link]:
    """Return the links of a ring in this order, each as who dials and whom."""
    names = [m.worker for m in members]
    return frozenset(zip(names, names[1:] + names[:1], strict=True)) if len(names) > 1 else frozenset()
