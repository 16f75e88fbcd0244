"""Ring order and roles of the next world.

A ring begins in the order of the topology: host by host, rack by rack. Survivors keep their relative order, so slots of
the step in flight stay where they were computed. A spare takes the place of an active that is gone, so does nobody
else. A joiner stands behind the last of those that are nearest to it, of its host, else of its rack, and so on: that
splits no pair that is nearer to each other. Actives always stand before spares: the last active's result passes the
spares on its way round.

A link that breaks again and again while both its ends live is routed round: an order is sought in which the two are
not neighbours. Where there is none, the links are chosen that broke least often: what broke long ago may be whole
again. Where that changes nothing the ring is turned round, so that the other end dials. A link that cannot even be made
is avoided from the first time on (`order_without`); if no order avoids those, `split` says who goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from reknit.core.events import Member

from .linkage import Link, Linkage
from .topology import Topology, natural
from .view import Worker

Pair = tuple[str, str]
"""Two workers, sorted."""

_SMALL = 32
"""Members up to which two moves are tried."""
_TRIED = 4096
"""Orders that are compared at most where no order is without bad links."""
_BEGINNINGS = 8
"""Members that an order is sought from."""
REROUTE_AFTER = 2
"""Breaks of one link, with both ends alive, until the ring is routed round it."""


FLAT = Topology()
"""Nothing is known of where nodes stand."""


def first_order(workers: Iterable[Worker], most_active: int, topology: Topology = FLAT) -> tuple[Member, ...]:
    """Order of a ring that begins: the nodes in the order of the topology; the first `most_active` are active."""
    there = list(workers)
    rank = {node: i for i, node in enumerate(topology.order(w.node for w in there))}
    ordered = sorted(there, key=lambda w: (rank[w.node], natural(w.worker)))
    return tuple(w.member("active" if i < most_active else "spare") for i, w in enumerate(ordered))


def next_order(
    members: Sequence[Member],
    gone: Collection[str],
    joiners: Sequence[Worker],
    most_active: int,
    current: Collection[str],
    *,
    topology: Topology = FLAT,
) -> tuple[Member, ...]:
    """Order and roles after some are gone and others join.

    Args:
        members: the world so far, in ring order.
        gone: members that leave it.
        joiners: workers that come in, in order of arrival.
        most_active: how many may be active.
        current: workers with current state; they are preferred when a spare is promoted.
        topology: where the nodes stand.
    """
    spares = [m for m in members if m.role == "spare" and m.worker not in gone]
    staying = sum(m.role == "active" and m.worker not in gone for m in members)
    room = max(0, most_active - staying)  # nobody is demoted after a scaling down: the agents drain the surplus
    actives: list[Member] = []
    for member in members:
        if member.role != "active":
            continue
        if member.worker not in gone:
            actives.append(member)
        elif spares and room:
            spare = _substitute(member, spares, current, topology)
            spares.remove(spare)
            actives.append(_as(spare, "active"))
            room -= 1
    promoted, spares = spares[:room], spares[room:]
    room -= len(promoted)
    for member in [*(_as(m, "active") for m in promoted), *(j.member("active") for j in joiners[:room])]:
        _beside(actives, member, topology)
    for joiner in joiners[room:]:
        _beside(spares, joiner.member("spare"), topology)
    return (*actives, *spares)


def _beside(members: list[Member], newcomer: Member, topology: Topology) -> None:
    """Put a newcomer behind the last of those that are nearest to it."""
    near = [topology.nearness(newcomer.node, m.node) for m in members]
    place = len(near) - near[::-1].index(max(near)) if near else 0
    members.insert(place, newcomer)


def _substitute(dead: Member, spares: Sequence[Member], current: Collection[str], topology: Topology) -> Member:
    """Choose the spare for a dead active's place: one with current state, of those the nearest one."""
    # `min` takes the first of equals
    return min(spares, key=lambda s: (s.worker not in current, -topology.nearness(s.node, dead.node)))


def _as(member: Member, role: Literal["active", "spare"]) -> Member:
    return member if member.role == role else msgspec.structs.replace(member, role=role)


def route_round(members: Sequence[Member], links: Mapping[Pair, int]) -> tuple[tuple[Member, ...], str]:
    """Return an order that avoids links which broke repeatedly, and what was done in words (empty: nothing)."""
    bad = {pair for pair, count in links.items() if count >= REROUTE_AFTER}
    touching = bad & neighbours(members)
    if not touching:
        return tuple(members), ""
    named = " and ".join(f"{a}–{b}" for a, b in sorted(touching))
    best = _separated(members, bad)
    if best is not None:
        return best, f"{named} broke repeatedly: they are no longer neighbours"
    best = _least_broken(members, {pair: links[pair] for pair in bad})
    if best is not None:
        return best, f"{named} broke repeatedly: the links that broke least often are taken"
    actives = [m for m in members if m.role == "active"]
    spares = [m for m in members if m.role == "spare"]
    return (*reversed(actives), *reversed(spares)), f"{named} broke repeatedly: the ring is turned round"


def order_without(
    members: Sequence[Member], unmade: Collection[Link], links: Mapping[Pair, int] | None = None
) -> tuple[Member, ...] | None:
    """Return an order of the ring in which no link is one that cannot be made; None if none is found.

    Sought first is one that avoids what broke repeatedly too, then one that avoids these links both ways. The search is
    complete for some ten members; for more it ends after a bounded number of places that were tried.

    Args:
        members: in ring order.
        unmade: links that cannot be made, each as who dials and whom.
        links: how often each link broke while both its ends lived.
    """
    never = frozenset(unmade)
    both_ways = never | {(b, a) for a, b in never}
    broken = {pair for pair, count in (links or {}).items() if count >= REROUTE_AFTER}
    doubtful = both_ways | broken | {(b, a) for a, b in broken}
    orders = (_order_without(members, avoided) for avoided in dict.fromkeys((doubtful, both_ways, never)))
    return next((order for order in orders if order is not None), None)


def _order_without(members: Sequence[Member], never: Collection[Link]) -> tuple[Member, ...] | None:
    """Search from place to place, whoever stood next first; actives before spares."""
    if len(members) < 2:
        return tuple(members)
    actives = [m for m in members if m.role == "active"]
    spares = [m for m in members if m.role == "spare"]
    place = {m.worker: i for i, m in enumerate(members)}
    left = _TRIED

    def choices(at: Member, taken: Collection[str]) -> list[Member]:
        """Who may follow, the best one last: spares only behind all actives."""
        rest = [m for m in actives if m.worker not in taken] or [m for m in spares if m.worker not in taken]
        fit = [m for m in rest if (at.worker, m.worker) not in never]
        return sorted(fit, key=lambda m: (place[m.worker] - place[at.worker]) % len(members), reverse=True)

    # a ring of one role may begin anywhere; with spares, they must fit behind the last active and before the first
    firsts = actives if actives and spares else (actives or spares)[:1]
    for first in firsts:
        order, taken = [first], {first.worker}
        stack = [choices(first, taken)]
        while stack and left:
            left -= 1
            if len(order) == len(members) and (order[-1].worker, first.worker) not in never:
                return tuple(order)
            if stack[-1]:
                member = stack[-1].pop()
                order.append(member)
                taken.add(member.worker)
                stack.append(choices(member, taken))
            else:
                stack.pop()
                taken.discard(order.pop().worker)
    return None


def order_to_learn(members: Sequence[Member], linkage: Linkage) -> tuple[Member, ...] | None:
    """Return an order with as many links of which nothing is known as a short search finds; None if all are known.

    For a ring in which no order avoids the links that cannot be made: what is found out now decides who goes on.

    Args:
        members: in ring order.
        linkage: what is known of their links; of a pair that was tried one way little is expected the other way.
    """
    known = linkage.made | linkage.unmade
    actives = [m for m in members if m.role == "active"]
    spares = [m for m in members if m.role == "spare"]

    def told(a: Member, b: Member) -> int:
        return ((a.worker, b.worker) in known) + ((b.worker, a.worker) in known)

    def from_here(first: Member) -> tuple[Member, ...]:
        order = [first]
        for group in (actives, spares):
            rest = [m for m in group if m is not first]
            while rest:
                order.append(min(rest, key=lambda m: told(order[-1], m)))
                rest.remove(order[-1])
        return tuple(order)

    def unknown(order: Sequence[Member]) -> int:
        return sum(told(a, b) == 0 for a, b in zip(order, [*order[1:], order[0]], strict=True))

    if len(members) < 2:
        return None
    best = max(map(from_here, (actives or spares)[:_BEGINNINGS]), key=unknown)
    return best if unknown(best) else None


def neighbours(members: Sequence[Member]) -> set[Pair]:
    """Pairs of workers that are linked in this order."""
    names = [m.worker for m in members]
    if len(names) < 2:
        return set()
    return {_pair(a, b) for a, b in zip(names, names[1:] + names[:1], strict=True)}


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)


def _separated(members: Sequence[Member], bad: Collection[Pair]) -> tuple[Member, ...] | None:
    """Find an order without bad links by moving one or two of their ends among their role; None if there is none."""
    ends = {name for pair in bad for name in pair}
    for order in _moves(members, ends):
        if not neighbours(order) & set(bad):
            return order
    if len(members) > _SMALL:
        return None
    for order in _moves(members, ends):
        for second in _moves(order, ends):
            if not neighbours(second) & set(bad):
                return second
    return None


def _least_broken(members: Sequence[Member], bad: Mapping[Pair, int]) -> tuple[Member, ...] | None:
    """Find an order whose links broke less often than those of this one; None if there is none."""

    def broke(order: Sequence[Member]) -> int:
        return sum(bad.get(pair, 0) for pair in neighbours(order))

    ends = {name for pair in bad for name in pair}
    everybody = {m.worker for m in members}
    second = (order for first in _moves(members, ends) for order in _moves(first, everybody))
    orders = itertools.chain(_moves(members, ends), itertools.islice(second, _TRIED))
    best = min(orders, key=broke, default=None)
    return best if best is not None and broke(best) < broke(members) else None


def _moves(members: Sequence[Member], only: Collection[str]) -> Iterable[tuple[Member, ...]]:
    """All orders in which one of these members stands elsewhere among those of its role, nearest places first."""
    size = len(members)
    places = [i for i in range(size) if members[i].worker in only]
    for distance in range(1, size):
        for i in places:
            for j in (i + distance, i - distance):
                if 0 <= j < size and members[i].role == members[j].role:
                    order = list(members)
                    order.insert(j, order.pop(i))
                    yield tuple(order)
