"""The reducer: `decide(view, told)` takes one input and returns the new view and what shall be done.

It has two halves. An input is *absorbed*: the log's events into the record, everything else into the sight. A tick
*concludes*: verdict, end of the run, next world, targeted checks. So whatever arrived together is decided together;
an event that may matter asks for a tick right behind it.
"""

from __future__ import annotations

import dataclasses

import xxhash

from reknit.core.decision import Decision, Disconnected, Out, Tick, Told
from reknit.core.events import (
    AgentLeft,
    DrainAsked,
    Event,
    JobInexact,
    NodeHeld,
    NodePulse,
    TargetsSet,
    WorkerPulse,
    WorkerRefused,
    WorldChanged,
)

from .candidates import JOIN_PATIENCE, JOIN_WINDOW, joiners, kept_out, outside
from .cut import BURST, CHECK_WAIT, LONGEST_BURST, SETTLE, UNSTABLE_WAIT, relink_wait, removable
from .damping import Kept
from .formation import enough
from .hearing import disconnected, hear, is_cut_off, is_silent, node_is_gone, notice, told_of
from .hosts import unlisted
from .outcome import outcome
from .proposal import finished, propose, propose_targets
from .record import LOST, read
from .verdict import Verdict, judge
from .view import Check, Life, Node, Record, Sight, View

DRAIN = 0.001
"""Seconds from an event to the decision: what was caused by the same fault comes within it."""
WORTH = 1.0
"""Seconds in which a world that somebody is missing from on two kinds of evidence must be on the log, or never."""
ASK_AGAIN = 2.0
"""Seconds after which a publication that did not come back from the log is asked for again."""
RING_DIAL = 0.005
"""Seconds from a report of a broken link until its peer is dialled, if nothing has explained it by then."""
NEARLY = 0.02
"""Seconds until the next look at one who is about to be found dead."""
LOST_AFTER = 60.0
"""Seconds of an agent's silence after which its node, if none of its processes lives, is said to have left."""
DIAL_AGAIN = 1.0
"""Seconds between two checks of the same worker."""


@dataclasses.dataclass(frozen=True, slots=True)
class Dial:
    """Targeted check: connect to the worker's address; the app publishes `worker.unreachable` if that fails."""

    worker: str
    incarnation: int
    address: str
    trace: str = ""


def decide(view: View, told: Told) -> Decision[View]:
    """Take one input."""
    what = told.event
    if isinstance(what, WorkerPulse | NodePulse):
        sight = hear(view.record, view.sight, what, told.now)
        news = isinstance(what, NodePulse) and told_of(view.sight, what.node) != told_of(sight, what.node)
        return Decision(dataclasses.replace(view, sight=sight), wake=DRAIN if news else None)
    if isinstance(what, Tick):
        if told.at:
            view = dataclasses.replace(view, sight=dataclasses.replace(view.sight, ahead=told.at - told.now))
        return _conclude(view, told.now)
    if isinstance(what, Disconnected):
        sight, lives = disconnected(view.record, view.sight, what.client_id, what.name, told.now)
        view, dials = _dial(dataclasses.replace(view, sight=sight), lives, told.now, urgent=True)
        return Decision(view, do=dials, wake=DRAIN if lives else None)
    return _absorb(view, what, told)


def _absorb(view: View, event: Event, told: Told) -> Decision[View]:
    record = read(view.record, event, told.seq, told.at)
    if record is view.record:
        return Decision(view)
    sight = notice(record, view.sight, event, told.now, told.trace)
    if record.run != view.record.run:
        sight = Sight(heard=sight.heard)
    return Decision(dataclasses.replace(view, record=record, sight=sight), wake=DRAIN)


def _conclude(view: View, now: float) -> Decision[View]:
    record = view.record
    if record.spec is None:
        return Decision(view)
    if record.over is not None:
        last = finished(view)
        return _ask(view, [_world_out(view, last)] if last else [], now, "the run is over")
    verdict = judge(record, view.sight, now)
    view = dataclasses.replace(view, sight=_clocks(record, view.sight, verdict, now))
    outs = [_refusal(view, life, why) for life, why in record.refusals.items() if life not in record.refused]
    outs += [_inexact(view, life, why) for life, why in record.inexact.items() if life not in record.inexact_told]
    outs += [_lost(view, node) for node in _lost_nodes(record, view.sight, now)]
    shut = kept_out(record, view.sight, now)
    outs += [_held(view, node, why) for node, why in shut.items() if _is_news(record, node, why)]
    outs += [_unlisted(view, node) for node in unlisted(record)]
    reason = ""
    alive = [m for m in record.members if m.worker not in verdict.gone]
    end = outcome(record, view.sight, alive, now)
    if end is not None:
        reason = f"{end.outcome}: {end.reason}"
        outs.append(Out(end, id=f"finished/{view.job}/{end.run}", trace=view.sight.trace))
    elif (world := propose(view, verdict, now)) is not None:
        reason = world.reason
        outs.append(_world_out(view, world, within=None if verdict.certain else WORTH))
    if end is None and (wanted := propose_targets(view)) is not None:
        reason = "; ".join(filter(None, [reason, wanted.reason]))
        outs.append(_targets_out(view, wanted))
    decision = _ask(view, outs, now, reason)
    view, dials = _dial(decision.state, _suspects(record, decision.state.sight, verdict, now), now, urgent=False)
    return dataclasses.replace(decision, state=view, do=dials, wake=_alarm(record, view.sight, verdict, now))


def _world_out(view: View, world: WorldChanged, *, within: float | None = None) -> Out:
    return Out(
        world,
        id=f"world/{view.job}/{world.generation}/{view.proposer}",
        expect_last=view.record.world_seq,
        trace=view.sight.trace,
        within=within,
    )


def _targets_out(view: View, wanted: TargetsSet) -> Out:
    spread = xxhash.xxh3_64_hexdigest(repr(sorted(wanted.targets.items())).encode())
    return Out(
        wanted,
        id=f"targets/{view.job}/{view.record.targets_seq}/{spread}",
        expect_last=view.record.targets_seq,
        trace=view.sight.trace,
    )


def _refusal(view: View, life: Life, why: str) -> Out:
    event = WorkerRefused(worker=life[0], incarnation=life[1], reason=why)
    return Out(event, id=f"refused/{view.job}/{life[0]}/{life[1]}")


def _inexact(view: View, life: Life, why: str) -> Out:
    worker, incarnation = life
    known = view.record.workers.get(worker)
    event = JobInexact(
        run=view.record.run,
        worker=worker,
        incarnation=incarnation,
        node=known.node if known is not None else "",
        difference=why,
    )
    return Out(event, id=f"inexact/{view.job}/{worker}/{incarnation}")


def _lost_nodes(record: Record, sight: Sight, now: float) -> list[Node]:
    """Nodes whose agents cannot say any more that they left: silent for long, with no process that lives."""
    if is_cut_off(sight, now):
        return []
    living = {w.node for w in record.workers.values() if w.life not in record.endings}
    living |= {s.node for s in record.started.values() if record.ending(s) is None}
    return [
        node
        for node in record.nodes.values()
        if not node.left and node.node not in living and node_is_gone(sight, node.node, now, at_least=LOST_AFTER)
    ]


def _lost(view: View, node: Node) -> Out:
    # Its arrival and the generation make the id: said once for each time it was there, whoever says it.
    event = AgentLeft(node=node.node, reason=LOST, arrival=node.seq)
    return Out(event, id=f"lost/{view.job}/{node.node}/{node.seq}/{view.record.generation}")


def _unlisted(view: View, node: Node) -> Out:
    # The sequence of its arrival makes the id: asked once for each time that it joined.
    asked = DrainAsked(target=node.node, reason=f"{node.host or node.node} is not in the list of hosts")
    return Out(asked, id=f"unlisted/{view.job}/{node.node}/{node.seq}", trace=view.sight.trace)


def _is_news(record: Record, node: str, why: Kept) -> bool:
    return record.kept_told.get((node, why.kind)) != why.until


def _held(view: View, node: str, why: Kept) -> Out:
    event = NodeHeld(
        node=node,
        run=view.record.run,
        cause=why.kind,
        until=why.until,
        seconds=why.seconds,
        count=why.count,
        reason=why.reason,
    )
    # The end is the log's time, folded from the log: whoever says it says the same.
    return Out(event, id=f"held/{view.job}/{node}/{why.kind}/{round(why.until * 1000)}")


def _ask(view: View, outs: list[Out], now: float, reason: str) -> Decision[View]:
    """Ask for publications, but not twice within `ASK_AGAIN`: the first is on its way."""
    asked = {id_: at for id_, at in view.sight.asked.items() if now - at < ASK_AGAIN}
    new = tuple(out for out in outs if out.id not in asked)
    asked.update({out.id: now for out in new})
    sight = dataclasses.replace(view.sight, asked=asked)
    return Decision(dataclasses.replace(view, sight=sight), out=new, reason=reason if new else "")


def _clocks(record: Record, sight: Sight, verdict: Verdict, now: float) -> Sight:
    """Note since when things are as they are; decisions that wait for something to last read it."""
    gone = removable(record, verdict)
    changes: dict[str, object] = {}
    if gone != sight.gone:
        changes.update(gone=gone, gone_changed=now, gone_since=sight.gone_since if sight.gone else now)
    alive = [m for m in record.members if m.worker not in verdict.gone]
    ring = record.knit and bool(alive)
    ready = not ring and enough(record, [*alive, *(w.member("active") for w in outside(record))])
    changes["joins_since"] = _since(sight.joins_since, bool(joiners(record, sight, verdict.gone, now)), now)
    changes["ready_since"] = _since(sight.ready_since, ready, now)
    changes["ringless_since"] = _since(sight.ringless_since, not ring, now)
    changes["stop_since"] = _since(sight.stop_since, record.stop is not None, now)
    return dataclasses.replace(sight, **changes)  # type: ignore[arg-type]


def _since(before: float | None, holds: bool, now: float) -> float | None:
    return (now if before is None else before) if holds else None


def _suspects(record: Record, sight: Sight, verdict: Verdict, now: float) -> tuple[Life, ...]:
    """Suspects that a dial may clear up: silent ones, and those whose ring link broke without an explanation."""
    found = []
    for worker in verdict.suspect:
        known = record.workers.get(worker)
        at = sight.noticed.get(("ring", worker))
        broken = at is not None and now - at >= RING_DIAL and not verdict.dead
        if known is not None and (broken or is_silent(sight, worker, now)):
            found.append(known.life)
    return tuple(found)


def _dial(view: View, lives: tuple[Life, ...], now: float, *, urgent: bool) -> tuple[View, tuple[Dial, ...]]:
    """Ask for dials, not more than one a life and second."""
    checks, dials = dict(view.sight.checks), []
    for worker, incarnation in lives:
        before, known = checks.get(worker), view.record.workers[worker]
        again = before is not None and before.incarnation == incarnation and now - before.at < DIAL_AGAIN
        if again and (not urgent or (before is not None and before.urgent)):
            continue
        checks[worker] = Check(incarnation, now, urgent)
        dials.append(Dial(worker, incarnation, known.address, view.sight.trace))
    return dataclasses.replace(view, sight=dataclasses.replace(view.sight, checks=checks)), tuple(dials)


def _alarm(record: Record, sight: Sight, verdict: Verdict, now: float) -> float | None:
    """Seconds until something is due that must not wait for the next regular tick."""
    due = []
    if verdict.gone:
        due += [check.at + CHECK_WAIT for check in sight.checks.values() if check.urgent]
        due += [sight.gone_changed + SETTLE, sight.gone_since + UNSTABLE_WAIT]
        due += [sight.gone_changed + BURST, sight.gone_since + LONGEST_BURST]
    if verdict.nearly:
        due.append(now + NEARLY)
    if sight.breaks_since is not None and not verdict.dead:
        due += [sight.breaks_since + RING_DIAL, sight.breaks_since + relink_wait(record)]
    if sight.joins_since is not None:
        due += [sight.joins_since + JOIN_WINDOW, sight.joins_since + JOIN_PATIENCE]
    # what is due this very moment may not be yet, by the last bit of the sum
    later = [at - now for at in due if at > now - 1e-6]
    return max(min(later), 0.0) + 0.001 if later else None
