"""The next world, if one is due: `propose(view, verdict, now)`.

Two situations. While a ring exists, a reason is needed: members gone, links broken, joiners, a spare to be promoted.
While none exists (the run begins, or everybody was lost) the ring may begin when `formation.may_begin` says so, and
until then it is announced as paused, with what is awaited. Whoever may come in (`candidates.joiners`) is in the next
world, whatever that world is for.
"""

from __future__ import annotations

from collections.abc import Sequence

from reknit.core.events import Evidence, Member, TargetsSet, WorldChanged

from . import split, topology, words
from .candidates import at_the_door, is_suspect, joiners, joins_due, learning, outside, welcome
from .cut import gone_due, relink_due, removable
from .evidence import observe
from .formation import booting, enough, may_begin, members_without, status_of, targets
from .planned import hindrance
from .ring_order import first_order, order_to_learn, order_without, route_round
from .verdict import Verdict
from .view import Record, View, Worker

BOOT = 60.0
"""Seconds that processes which were started may take to come up; before, that they are not there yet is no news."""
START = 15.0
"""... and that agents may take to start the first of them."""
ANNOUNCE_EVERY = 1.0
"""Seconds between two announcements of a paused world in which only the waiting changed."""


def propose(view: View, verdict: Verdict, now: float) -> WorldChanged | None:
    """Return the next world if one is due."""
    record, sight = view.record, view.sight
    if not record.open:
        return None
    staying = [m for m in record.members if m.worker not in verdict.gone]
    if staying and record.knit:
        return _next(view, verdict, now)
    if record.completed() or record.stop is not None:
        return None  # the run only ends
    inside = [record.workers[m.worker] for m in staying]
    there = [*inside, *welcome(record, sight, now)]
    if not enough(record, there):
        there = [*inside, *outside(record)]
    if not removable(record, verdict) or gone_due(record, sight, verdict, now):
        heard = [w for w in there if not is_suspect(record, sight, w, now)]
        heirs = [w for w in heard if w.current]
        if heirs and enough(record, heard):
            return _first(view, verdict, heard, heirs)
    if may_begin(record, sight, there, now):
        return _first(view, verdict, there, ())
    return _announce(view, verdict, there, now)


def propose_targets(view: View) -> TargetsSet | None:
    """Return how many workers each node shall keep, if the nodes were not told so."""
    record = view.record
    wanted = targets(record)
    if not record.open or record.completed() or record.stop is not None or wanted == record.targets:
        return None
    if not wanted:
        return None  # the list of hosts says no numbers any more: nodes keep what they have
    nodes = words.count(len(wanted), "node")
    scaled = f"scaled to {words.count(record.scaled or 0, 'worker')} on {nodes}"
    return TargetsSet(
        run=record.run,
        targets=wanted,
        reason=scaled if record.scaled is not None else f"the list of hosts gives numbers for {nodes}",
        decided_by=view.proposer,
        spares=record.spec.spares if record.spec is not None else 0,
    )


def _next(view: View, verdict: Verdict, now: float) -> WorldChanged | None:
    """A world that follows while a ring exists."""
    record, sight = view.record, view.sight
    coming, learners = joiners(record, sight, verdict.gone, now), learning(record, verdict.gone)
    relink = relink_due(record, sight, verdict, now)
    promote = not removable(record, verdict) and members_without(record, (), joiners=()) != record.members
    join = bool(coming) and joins_due(sight, now, others=bool(learners))
    if not (relink or promote or join or gone_due(record, sight, verdict, now)):
        return None
    members = members_without(record, verdict.gone, joiners=coming)
    shut = at_the_door(record, sight, now)
    if (learners or shut) and status_of(record, members)[0] == "paused":
        # rather with those who still learn, or are kept out, than not at all: they go on learning in the ring
        coming, learners, shut = outside(record), (), {}
        members = members_without(record, verdict.gone, joiners=coming)
    clauses = words.why_gone(record, verdict)
    evidence: list[Evidence] = []
    apart: frozenset[str] = frozenset()
    if relink and not clauses:
        clauses.append(words.why_relinked(record))
        evidence = [observe("ring", b.peer, b.worker, b.error) for b in record.breaks]
        apart = _apart(record)
        if apart:
            members = members_without(record, verdict.gone | apart, joiners=coming)
            linkage = record.linkage.after(record.members, record.breaks)
            evidence = [*split.why(sorted(apart), {m.worker for m in members}, linkage)]
        members, rerouted = _rerouted(record, members)
        clauses += [words.why_apart(sorted(apart))] if apart else [rerouted] if rerouted else []
    clauses += words.why_promoted(record.members, members) + words.why_joined(coming, members)
    clauses += words.who_learns(learners) + words.who_is_kept_out(shut)
    return _world(view, verdict, members, clauses, evidence=evidence, apart=tuple(sorted(apart)))


def _apart(record: Record) -> frozenset[str]:
    """Members that are put out because no ring with them can be linked; nobody, if the others could not go on."""
    linkage = record.linkage.after(record.members, record.breaks)
    stay = split.kept(record.members, linkage, record.relinks, record.workers, record.apart)
    if len(stay) == len(record.members) or status_of(record, stay)[0] == "paused":
        return frozenset()
    return frozenset(m.worker for m in record.members) - {m.worker for m in stay}


def _rerouted(record: Record, members: tuple[Member, ...]) -> tuple[tuple[Member, ...], str]:
    """Order the ring round what cannot be linked, else to find out more, else round what broke repeatedly."""
    linkage, counts = record.linkage.after(record.members, record.breaks), links_with_this_break(record)
    inside = {m.worker for m in members}
    unmade = [link for link in sorted(linkage.unmade) if inside.issuperset(link)]
    order = order_without(members, linkage.unmade, counts) if unmade else None
    if order is None:
        learns = order_to_learn(members, linkage) if unmade else None
        if learns is None:
            return route_round(members, counts)
        return learns, "no order avoids the links that cannot be made: those that were not tried yet are"
    named = words.names([f"{a}→{b}" for a, b in unmade])
    return order, f"{named} cannot be linked: another order is tried" if order != members else ""


def links_with_this_break(record: Record) -> dict[tuple[str, str], int]:
    """How often each link broke while both ends lived, the present break included."""
    first = record.breaks[0]
    low, high = sorted((first.worker, first.peer))
    return {**record.links, (low, high): record.links.get((low, high), 0) + 1}


def _first(view: View, verdict: Verdict, there: Sequence[Worker], heirs: Sequence[Worker]) -> WorldChanged:
    """The world in which a ring begins; `heirs`: who has the state although the ring before is lost."""
    record = view.record
    members = first_order(there, record.most_active, topology.of(record, view.sight))
    expected = record.most_active + (record.spec.spares if record.spec else 0)
    begins = "the ring begins again" if record.began else "the ring begins"
    clauses = [*words.why_gone(record, verdict), f"{begins}: {len(there)} of {expected} workers registered"]
    clauses += words.who_carries_on(heirs)
    return _world(view, verdict, members, clauses)


def _announce(view: View, verdict: Verdict, there: Sequence[Worker], now: float) -> WorldChanged | None:
    """A paused world, when everybody was lost, or when too few have come for a while."""
    record, sight = view.record, view.sight
    # by the log alone: nobody steps in it, and what is measured anew each second is no reason for another world
    members = first_order(there, record.most_active, topology.of(record))
    clauses = words.why_gone(record, verdict)
    if removable(record, verdict):
        due = gone_due(record, sight, verdict, now)
        return _world(view, verdict, members, clauses, paused=True) if due else None
    patience = record.spec.last_call if record.spec else 0.0
    if booting(record):
        patience += BOOT
    elif not record.started:
        patience += START
    since = sight.ringless_since
    if since is None or now - since < patience or now - sight.world_at < ANNOUNCE_EVERY:
        return None
    status, awaiting = status_of(record, members)
    world = record.world
    if status == "running" or (world is not None and (world.members, world.awaiting) == (members, awaiting)):
        return None
    return _world(view, verdict, members, clauses, paused=True)


def finished(view: View) -> WorldChanged | None:
    """The last world of a run that is over: who took part at the end, so that nobody thinks itself evicted."""
    record = view.record
    if record.over is None or record.world is None or record.world.status == "finished":
        return None
    return WorldChanged(
        generation=record.generation + 1,
        run=record.run,
        status="finished",
        members=record.members,
        reason=f"the run {record.over.outcome}: {record.over.reason}" if record.over.reason else record.over.outcome,
        decided_by=view.proposer,
        restarts=record.restarts,
    )


def _world(
    view: View,
    verdict: Verdict,
    members: Sequence[Member],
    clauses: Sequence[str],
    *,
    evidence: Sequence[Evidence] = (),
    paused: bool = False,
    apart: tuple[str, ...] = (),
) -> WorldChanged:
    """Make the event; `clauses` say what happened, the outlook is added."""
    record = view.record
    status, awaiting = status_of(record, members)
    if paused and status == "running":  # enough are there, but others are still expected
        status, awaiting = "paused", "the last call for more workers to end"
    before = record.lives
    after = {(m.worker, m.incarnation) for m in members}
    added = tuple(m.worker for m in members if (m.worker, m.incarnation) not in before)
    dead = [e for about in verdict.dead.values() for e in about]
    slots = record.terms.slots if record.terms else 0
    outlook = words.outlook(members, status, slots=slots, goes_on=record.knit and len(added) < len(members))
    return WorldChanged(
        generation=record.generation + 1,
        run=record.run,
        status=status,
        members=tuple(members),
        reason="; ".join([*clauses, outlook]),
        evidence=(*dead, *evidence, *(observe("join", name, name, "registered", certain=False) for name in added)),
        decided_by=view.proposer,
        removed=tuple(m.worker for m in record.members if (m.worker, m.incarnation) not in after),
        added=added,
        awaiting=awaiting,
        leaving=tuple(m.worker for m in members if record.is_leaving(m)),
        restarts=record.restarts,
        planned=hindrance(record, verdict, status) is None,
        apart=apart,
    )
