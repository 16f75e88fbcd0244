"""Who goes on when the ring is split: links cannot be made, everybody lives, and no order of the ring avoids them.

Nobody is dead, and all reach the broker, so no evidence will ever settle it, and without a ring nobody commits a step.
After some tries the greatest part whose members could link with each other goes on. Those of the other parts are put
out: they are evicted as somebody who froze is, and come back as newcomers once they can learn from a member, that is,
when the path is there again. Who is put out again and again is held down as any other node that flaps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from reknit.core.events import Evidence, Member

from .evidence import observe
from .linkage import Linkage
from .ring_order import order_without
from .view import Worker

TRIES = 4
"""Rings of the same members, tried without a step between them, before anybody is put out: some 5 to 20 s."""
MOST_TRIES = 8
"""... although there are orders that have not been tried: of many members there always are."""
TRIES_AGAIN = 1
"""... where it is enough to put those out that were put out before, and have been in no whole ring since."""
_LISTED = 4


def kept(
    members: Sequence[Member],
    linkage: Linkage,
    tries: int,
    workers: Mapping[str, Worker],
    before: Collection[str] = (),
) -> tuple[Member, ...]:
    """Return who goes on, in the order of `members`: all of them unless it is time to put somebody out.

    Args:
        members: of the ring that could not be linked, all of them alive.
        linkage: what is known of their links.
        tries: rings that were tried without a step between them.
        workers: what is known of the members, by name.
        before: workers that were put out before, and have been in no whole ring since.
    """
    everybody = tuple(members)
    if tries < TRIES or not linkage.unmade:
        return _without(members, before, linkage, workers) if tries >= TRIES_AGAIN else everybody
    possible = order_without(members, linkage.unmade) is not None
    if possible and tries < MOST_TRIES:
        return everybody
    parts = _parts(members, linkage)
    if possible and len(parts) == 1:
        return everybody
    part = max(parts, key=lambda p: _worth(p, workers))
    while len(part) > 1 and order_without(part, linkage.unmade) is None:
        worst = max(part, key=lambda m: (not _current(m, workers), _failures(m, part, linkage), _seq(m, workers)))
        part = tuple(m for m in part if m is not worst)
    return part


def _without(
    members: Sequence[Member], before: Collection[str], linkage: Linkage, workers: Mapping[str, Worker]
) -> tuple[Member, ...]:
    """Return the members without those that were put out before, if theirs alone are the links that cannot be made."""
    rest = tuple(m for m in members if m.worker not in before)
    to_blame = bool(linkage.unmade) and all(a in before or b in before for a, b in linkage.unmade)
    return rest if to_blame and any(_current(m, workers) for m in rest) else tuple(members)


def why(out: Iterable[str], stay: Collection[str], linkage: Linkage) -> tuple[Evidence, ...]:
    """Return the evidence about each of those that are put out: the links with the others that could not be made."""
    found: list[Evidence] = []
    for worker in out:
        about = [
            observe("ring", worker, a, f"it cannot link to {b}" if a == worker else f"{a} cannot link to it")
            for a, b in sorted(linkage.unmade)
            if (a == worker and b in stay) or (b == worker and a in stay)
        ]
        alone = observe("ring", worker, "membership", "no ring of those that go on has a place for it")
        found += about[:_LISTED] or [alone]
    return tuple(found)


def _parts(members: Sequence[Member], linkage: Linkage) -> list[tuple[Member, ...]]:
    """Members that are connected by links which could be made, part by part."""
    part = {m.worker: m.worker for m in members}

    def root(name: str) -> str:
        while part[name] != name:
            name = part[name]
        return name

    for a, b in sorted(linkage.made):
        if a in part and b in part:
            part[root(a)] = root(b)
    found: dict[str, list[Member]] = {}
    for member in members:
        found.setdefault(root(member.worker), []).append(member)
    return [tuple(p) for p in found.values()]


def _worth(part: Sequence[Member], workers: Mapping[str, Worker]) -> tuple[int, int, int]:
    """Order parts: those who have the state count first, then all, then who is in the job for longest."""
    return sum(_current(m, workers) for m in part), len(part), -min(_seq(m, workers) for m in part)


def _current(member: Member, workers: Mapping[str, Worker]) -> bool:
    known = workers.get(member.worker)
    return known is not None and known.current


def _seq(member: Member, workers: Mapping[str, Worker]) -> int:
    known = workers.get(member.worker)
    return known.seq if known is not None else 0


def _failures(member: Member, part: Sequence[Member], linkage: Linkage) -> int:
    names = {m.worker for m in part}
    return sum(member.worker in link and names.issuperset(link) for link in linkage.unmade)
