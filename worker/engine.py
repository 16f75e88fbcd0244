"""The engine thread: follows the world, links the ring, calls the roll, reduces step after step, mends what breaks.

One loop: wait for a newer world that has us in it; serve it until it moves or a link breaks; again. Nothing here knows
torch: a slot is a flat byte buffer, and the main thread computes and applies through `Exchange`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from reknit.core.errors import ReknitError
from reknit.core.events import (
    JobDoubted,
    RingBroken,
    RingLinked,
    RingRecovered,
    WorkerDiverged,
    WorkerLeaving,
    WorldChanged,
)

from . import courtesy
from .calling import Caller
from .candidate import Candidate
from .exchange import Exchange
from .feed import Feeder
from .identity import Identity
from .learning import Learner
from .ledger import Pending, Record
from .parting import Parting
from .ports import Outlet, Span
from .ring import control, reduction
from .ring.control import Plan, Settled
from .ring.link import LinkBroken
from .ring.linking import WorldMoved
from .ring.listener import Listener
from .ring.neighbours import Neighbours
from .ring.pieces import Buffer
from .ring.resend import Committed
from .ring.roll_call import Decision
from .ring.vote import Wrong
from .standing import Standing
from .transport.port import Tcp, Transport
from .voice import Voice
from .work import Result


class Engine:
    """Runs the ring for one session.

    Args:
        identity: who we are.
        shared: what is shared with the main thread.
        slots: V.
        listener: our listener, None in a world of one.
        outlet: where events go.
        register: announces this worker (again) after it was left out of a world; gets the new incarnation.
        loss_of: reads the global mean loss out of a result buffer, for the ledger.
        feeder: sends results to candidates.
        transport: adds up; None: the ring's own links.
        saves: a service takes checkpoints of the run.

    Attributes:
        standing: member, candidate or left out.
        caller: calls the roll.
        neighbours: our links.
        ledger: records not known to be stored.
        links_made: how many rings this worker was linked into.
        voice: what this worker says in the control piece.
        parting: the end of the run.
    """

    def __init__(
        self,
        identity: Identity,
        shared: Exchange,
        slots: int,
        *,
        listener: Listener | None,
        outlet: Outlet,
        register: Callable[[int, int], None],
        loss_of: Callable[[Result], float | None],
        feeder: Feeder | None = None,
        transport: Transport | None = None,
        saves: bool = False,
    ) -> None:
        self.identity = identity
        self.shared = shared
        self.slots = slots
        self.outlet = outlet
        self.ledger = Pending(identity.run, slots, outlet, shared.notify)
        self.trace = ""
        self.links_made = 0
        self.feeder = feeder or Feeder(shared)
        self._transport = transport or Tcp()
        self._loss_of = loss_of
        self._cut = shared.shape.pieces()
        self.neighbours = Neighbours(
            identity.job,
            identity.worker,
            identity.secret,
            listener=listener,
            wait=shared.wait,
            moved=shared.moved,
        )
        self._broken_at: float | None = None
        self._orphans = 0
        self._scrap: list[Buffer] = []
        self._learner = Learner(identity.job, identity.worker, identity.secret, shared)
        self.caller = Caller(
            identity,
            shared,
            slots,
            cut=self._cut,
            neighbours=self.neighbours,
            outlet=outlet,
            ledger=self.ledger,
            learner=self._learner,
            commit=lambda result: self._commit(result, publish=False),
        )
        self.voice = Voice(
            identity.worker,
            shared,
            caller=self.caller,
            feeder=self.feeder,
            ledger=self.ledger,
            neighbours=self.neighbours,
            saves=saves,
        )
        self.parting = Parting(identity.worker, shared, self.neighbours, self.ledger)
        self.standing = Standing(
            shared,
            Candidate(identity.job, identity.worker, identity.secret, shared, anew=self._anew, fed=self._fed),
            register,
        )
        shared.on_stray = self._stray
        shared.on_doubt = self._doubt
        shared.early.on_spoilt = lambda generation: self.neighbours.abort(before=generation + 1)
        self._thread = threading.Thread(target=self._run, name="ring-engine", daemon=True)

    # ------------------------------------------------------------------------------------ from other threads

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def on_world(self, world: WorldChanged, trace: str = "") -> None:
        """A world was heard (bus thread): what belongs to an older one is aborted at once, unless it was planned."""
        if world.run != self.identity.run:
            return
        shared = self.shared
        with shared.cv:
            now = shared.hear(world)
            if world in (shared.world, shared.upcoming):
                self.trace = trace
            if not now:
                return
            if shared.generation and self._broken_at is None:
                self._broken_at = time.monotonic()
        self.neighbours.abort(before=world.generation)

    def on_plan(self, plan: Plan) -> None:
        """A plan was heard (bus thread)."""
        with self.shared.cv:
            have = self.shared.plan
            if have is None or (plan.generation, plan.version) > (have.generation, have.version):
                self.shared.plan = plan

    def close(self) -> None:
        """End the engine and free everything; safe to call twice."""
        with self.shared.cv:
            self.shared.closed = True
            self.shared.cv.notify_all()
        self.neighbours.abort()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self.standing.close()
        self.feeder.close()
        self._learner.close()
        self._transport.close()
        self._unlink()
        self.shared.early.close()

    # ------------------------------------------------------------------------------------------ engine thread

    def _run(self) -> None:
        try:
            while not self.shared.closed and not self.shared.finished:
                world = self.standing.next_world()
                if world is None:
                    return
                try:
                    self._serve(world)
                except WorldMoved:
                    pass
                except LinkBroken as broken:
                    self._lost(world, broken)
                self.shared.switch()
        except Exception as error:  # noqa: BLE001 - whatever it is, the main thread must end with it rather than wait for ever
            self.shared.fail(error)
        finally:
            self.neighbours.abort()

    def come_back(self) -> None:
        """Register again after a world went on without us (main thread)."""
        self.standing.come_back()

    # ------------------------------------------------------------------------------------------------ serving

    def _serve(self, world: WorldChanged) -> None:
        ring = [m.worker for m in world.members]
        trace = self.trace
        courtesy.end()
        self.standing.enter(world)
        self.feeder.serving(world)
        began = time.monotonic()
        self._link(world)
        linked = time.monotonic()
        decision = self.caller.call(world)
        self._orphans = decision.orphans
        called = time.monotonic()
        self._span("ring.link", began, linked, trace, generation=world.generation, members=len(ring))
        self._span("ring.roll_call", linked, called, trace, decision=decision.words, step=decision.step)
        self.outlet.post(
            RingLinked(
                worker=self.identity.worker,
                incarnation=self.shared.incarnation,
                generation=world.generation,
                step=decision.step,
                link_seconds=linked - began,
                roll_call_seconds=called - linked,
                decision=decision.words,
            ),
            trace=trace,
        )
        self.shared.reducing = True
        while self.shared.step < self.shared.total:
            settled = self._reduce(world, ring, decision, trace)
            if settled.switch:
                self._part_for(settled.switch)
                return
        self.shared.switch()
        self.parting.finish(ring)

    def _part_for(self, generation: int) -> None:
        """A planned world follows: what we owe the next worker of this ring is sent before the links are closed."""
        self._broken_at = time.monotonic()
        self.neighbours.drain()
        with self.shared.cv:
            while not self.shared.moved():
                heard = self.shared.upcoming or self.shared.world
                if heard is not None and heard.generation >= generation:
                    return
                self.shared.cv.wait()

    def _link(self, world: WorldChanged) -> None:
        self._unlink()
        self.links_made += 1
        self.neighbours.link(world.members, self.shared.incarnation, world.generation)

    def _reduce(self, world: WorldChanged, ring: list[str], decision: Decision, trace: str) -> Settled:
        shared = self.shared
        owners = shared.owners
        step = shared.step
        where = reduction.route(ring, owners, self.identity.worker)
        following = self.neighbours.following
        began = time.monotonic()
        shared.early.anew(world.generation)
        work = reduction.Reduction(
            step=step,
            slots=self.slots,
            cut=self._cut,
            where=where,
            previous=self.neighbours.previous,
            following=following,
            result=shared.pool.take(),
            chain=shared.chain,
            own=shared.own_buffers,
            arrivals=shared.early,
            samples=lambda slot: shared.samples(step, slot),
            wishes=self.voice.wishes,
            settle=lambda wishes: control.settle(
                wishes, owners, self.slots, generation=world.generation, ring=ring, current=decision.current
            ),
            witness=lambda: shared.own_weights() if shared.current else 0,
        )
        try:
            settled, chain = self._transport.reduce(work)
        except ReknitError:
            self._scrap.append(work.result)  # a sender may still read it: it is free once the links are closed
            raise
        ticket = following.issued if following is not None else 0
        again, self._orphans = self._orphans, 0
        committed = Committed(step, world.generation, owners, settled, chain, again)
        self._commit(Result(work.result, committed, following, ticket), publish=where.place == 0)
        if self._broken_at is not None:
            seconds = time.monotonic() - self._broken_at
            self._span("ring.first_commit", began, time.monotonic(), trace, step=step, computed_again=again)
            if where.place == 0:
                self.outlet.post(
                    RingRecovered(
                        worker=self.identity.worker,
                        generation=world.generation,
                        step=step,
                        seconds=seconds,
                        computed_again=again,
                    ),
                    trace=trace,
                )
            self._broken_at = None
        return settled

    def _anew(self, step: int, chain: int) -> None:
        """A candidate begins (again) with a fresh copy of the state (its own thread)."""
        self.shared.start_learning(step, (), chain)
        self.ledger.rewind(step)

    def _fed(self, result: Result) -> None:
        """A candidate's next result (its own thread)."""
        self._commit(result, publish=False)
        with self.shared.cv:  # it followed on ours, chain and all: what we have is the run's
            self.shared.current = self.shared.whole and not self.shared.learning

    def _commit(self, result: Result, *, publish: bool) -> None:
        shared = self.shared
        settled = result.of.settled
        record = Record(result.of, self._loss_of(result))
        with shared.cv:
            if settled.checkpoint:
                shared.checkpoint_settled(settled.checkpoint)
            if settled.stop:
                shared.total = min(shared.total, result.of.step + 1)
            shared.complete(result)
        self.feeder.committed(result)
        self.caller.leavers |= settled.leaving  # one without slots has no voice any more: the others remember its wish
        self.ledger.known(settled.ledger)
        self.ledger.add(record, publish=publish)
        if publish and settled.checkpoint:
            self.ledger.flush()  # a checkpoint counts only once the ledger reaches its step
        # who reduces nothing (a spare, a learner) has no say in the control piece; it sees that it has no slots
        me, busy = self.identity.worker, {r.worker for r in settled.owners}
        together = settled.stop or self.voice.stopping
        if shared.leaving and not together and (me in settled.leaving or me not in busy):
            self._say_idle()

    def _say_idle(self) -> None:
        shared = self.shared
        if shared.leaving != "idle":
            self.ledger.flush()
            self.outlet.post(
                WorkerLeaving(
                    worker=self.identity.worker, incarnation=shared.incarnation, reason=shared.leaving, idle=True
                )
            )
            shared.leaving = "idle"

    # ------------------------------------------------------------------------------------- when it breaks

    def _stray(self, step: int, wrong: Wrong) -> None:
        """This worker has other bits than the ring agreed on (any thread)."""
        self.outlet.post(
            WorkerDiverged(
                worker=wrong.worker,
                incarnation=self.shared.incarnation,
                node=self.identity.node,
                generation=self.shared.generation,
                step=step,
                what=wrong.what,
                digest=wrong.digest,
                right=wrong.right,
                by=wrong.by,
                observer=wrong.worker,
            )
        )
        self.standing.note_unfit()
        self.neighbours.abort()

    def _doubt(self, step: int, why: str) -> None:
        """A step that a sole worker committed cannot be trusted (main thread)."""
        self.outlet.post(JobDoubted(run=self.identity.run, step=step, worker=self.identity.worker, reason=why))

    def _lost(self, world: WorldChanged, broken: LinkBroken) -> None:
        shared = self.shared
        if broken.orderly and shared.main_step is not None and shared.main_step >= shared.total:
            self.parting.bye()
            return
        with shared.cv:
            if self._broken_at is None:
                self._broken_at = time.monotonic()
            shared.enter("wait")
            if self.shared.moved() or shared.upcoming is not None:
                return
        following = self.neighbours.following
        if shared.weights.why or shared.early.spoilt:
            broken = LinkBroken(broken.side, shared.weights.why or shared.early.spoilt)
        elif following is not None and following.failure:
            broken = LinkBroken("next", following.failure)
        ring = [m.worker for m in world.members]
        place = ring.index(self.identity.worker)
        peer = ring[place - 1] if broken.side == "previous" else ring[(place + 1) % len(ring)]
        self.outlet.post(
            RingBroken(
                worker=self.identity.worker,
                incarnation=shared.incarnation,
                generation=world.generation,
                step=shared.step,
                peer=peer,
                side="previous" if broken.side == "previous" else "next",
                error=broken.reason,
                unmade=broken.unmade,
            )
        )

    def _unlink(self) -> None:
        self.neighbours.close()
        while self._scrap:
            self.shared.pool.give(self._scrap.pop())

    def _span(self, name: str, begin: float, end: float, trace: str, **attributes: str | int | float) -> None:
        now = time.monotonic()
        self.outlet.span(Span(name, now - begin, end - begin, trace, dict(attributes)))
