"""The roll call as one worker takes part in it: what it says of itself, and what it does of what was decided."""

from __future__ import annotations

from collections.abc import Callable

from reknit.core.events import CheckpointRestored, Member, WorkerDiverged, WorldChanged

from .exchange import Exchange
from .identity import Identity
from .learning import Learner
from .ledger import Pending
from .ports import Outlet
from .ring import chain, resend, roll_call
from .ring.link import LinkBroken
from .ring.linking import WorldMoved
from .ring.neighbours import Neighbours
from .ring.pieces import Piece
from .ring.roll_call import Decision, Entry
from .ring.token import circulate
from .ring.vote import Wrong
from .work import Result


class Caller:
    """Calls the roll in a freshly linked ring until it is agreed how the run goes on, and brings this worker there.

    Args:
        identity: who we are.
        shared: what is shared with the main thread.
        slots: V.
        cut: pieces of the flat buffer.
        neighbours: our links.
        outlet: where events go.
        ledger: records not known to be stored.
        learner: fetches the state if we have none.
        commit: takes in a result that was sent again.

    Attributes:
        leavers: who of the ring wants to leave, as far as known.
        fresh_digest: digest of the untrained state: equal ones need no transfer.
        restorable: step count of the newest checkpoint that this worker can reach, -1 if none.
    """

    def __init__(
        self,
        identity: Identity,
        shared: Exchange,
        slots: int,
        *,
        cut: tuple[Piece, ...],
        neighbours: Neighbours,
        outlet: Outlet,
        ledger: Pending,
        learner: Learner,
        commit: Callable[[Result], None],
    ) -> None:
        self.leavers: frozenset[str] = frozenset()
        self.fresh_digest = 0
        self.restorable = -1
        self._identity = identity
        self._shared = shared
        self._slots = slots
        self._cut = cut
        self._neighbours = neighbours
        self._outlet = outlet
        self._ledger = ledger
        self._learner = learner
        self._commit = commit

    def call(self, world: WorldChanged) -> Decision:
        """Call the roll and do our part of what is decided.

        Raises:
            WorldMoved: a newer world arrived meanwhile.
            LinkBroken: a neighbour is gone or broke the protocol.
            Diverged: members hold different results or weights and nobody can say which are right.
        """
        decision = self._roll(world)
        try:
            while decision.leader or decision.ask:
                if decision.leader == self._identity.worker:
                    self._lead()
                if self._identity.worker in decision.ask:
                    self._shared.ask(wanted=True)
                    self._shared.own_weights()
                decision = self._roll(world)
        finally:
            self._shared.ask(wanted=False)
        self._adopt(world, decision)
        self._name_diverged(world, decision)
        if decision.donor:
            self._send_again([m.worker for m in world.members], decision)
        return decision

    def _roll(self, world: WorldChanged) -> Decision:
        place = [m.worker for m in world.members].index(self._identity.worker)
        self._shared.reach_loaded()
        plain = roll_call.entry_to_plain(self._entry(world))
        links = self._neighbours
        token = circulate(place, len(world.members), links.previous, links.following, plain)
        entries = [roll_call.entry_from_plain(item) for item in token]
        self.leavers = frozenset(e.worker for e in entries if e.leaving)
        return roll_call.decide(entries, self._slots, world.generation)

    def _entry(self, world: WorldChanged) -> Entry:
        shared = self._shared
        member = member_of(world, shared)
        assert member is not None
        with shared.cv:
            plan = shared.plan if shared.plan and shared.plan.generation == world.generation else None
            return Entry(
                worker=self._identity.worker,
                incarnation=shared.incarnation,
                role=member.role,
                held=shared.step - 1,
                current=shared.current,
                waiting=not shared.current,
                result=shared.step - 1 in shared.results,
                owners=shared.owners,
                computed=tuple(sorted(shared.computed)),
                plan=plan,
                chain=shared.chain,
                digest=self._fresh(),
                memory=shared.step - 1 if shared.whole else -1,
                restorable=self.restorable,
                leaving=bool(shared.leaving),
                finished=shared.main_step is not None and shared.main_step >= shared.total,
                weights=shared.weights.of(shared.step),
                state=shared.weights.state if shared.weights.of(shared.step) else 0,
                vouched=shared.weights.vouched,
                before=shared.weights.before,
            )

    def _fresh(self) -> int:
        """Digest of the state that this worker was built with, as long as nothing has happened to it."""
        shared = self._shared
        return self.fresh_digest if shared.step == 0 and not shared.taught and shared.weights.vouched else 0

    def _lead(self) -> None:
        """Nobody has the run's state: what this worker has, or restores, is the run's from now on."""
        shared = self._shared
        self._learner.forget()
        with shared.cv:
            if shared.whole and shared.step >= max(1, self.restorable):
                shared.current = True
                shared.owners = ()
                self._ledger.rewind(shared.step)
                self._outlet.post(
                    CheckpointRestored(
                        run=self._identity.run,
                        checkpoint="",
                        step=shared.step,
                        worker=self._identity.worker,
                        generation=shared.generation,
                        chain=shared.chain,
                    )
                )
                return
            shared.current = False
            shared.owners = ()  # else the main thread begins with slots of the plan before, and they are dropped
            shared.restore_wanted = True
            shared.cv.notify_all()
            while not shared.current:
                if shared.moved():
                    shared.restore_wanted = False
                    raise WorldMoved("a newer world arrived while restoring")
                shared.cv.wait()
        self._ledger.rewind(shared.step)

    def _adopt(self, world: WorldChanged, decision: Decision) -> None:
        shared = self._shared
        me = self._identity.worker
        self._ledger.resend()
        with shared.cv:
            if me in decision.current:
                shared.current = shared.whole = True
                shared.heard(void=decision.void, witnesses=len(decision.current))
                # who waits for the furthest result keeps what it has computed of that step: its holder may die too
                if me not in decision.lacking:
                    shared.adopt(decision.step, decision.owners)
            else:
                shared.weights.spoilt |= me in {found.worker for found in decision.diverged}
                shared.start_learning(decision.step, decision.owners, decision.chain)
                self._ledger.rewind(decision.step)
        if dict(decision.learners).get(me):
            teachers = [m for m in world.members if m.worker in decision.current]
            self._learner.learn(teachers, world.generation, decision.step)

    def _name_diverged(self, world: WorldChanged, decision: Decision) -> None:
        """Whoever had other bits than the right ones is told to the job, once: by the first of the others."""
        right = [m.worker for m in world.members if m.worker in decision.current]
        if right[:1] != [self._identity.worker]:
            return
        members = {m.worker: m for m in world.members}
        for found in decision.diverged:
            self._outlet.post(
                WorkerDiverged(
                    worker=found.worker,
                    incarnation=members[found.worker].incarnation,
                    node=members[found.worker].node,
                    generation=world.generation,
                    step=decision.furthest if found.what == "result" else decision.step,
                    what=found.what,
                    digest=found.digest,
                    right=found.right,
                    by=found.by,
                    observer=self._identity.worker,
                )
            )

    def _send_again(self, ring: list[str], decision: Decision) -> None:
        """The furthest result goes round once more, for those that lack it."""
        shared = self._shared
        me = self._identity.worker
        links = self._neighbours
        if me == decision.donor:
            assert links.following is not None
            held = shared.results[decision.furthest]
            self._check_kept(held)
            held.ticket = resend.send(links.following, held.of, held.buffer, self._cut)
            held.link = links.following
            return
        assert links.previous is not None
        onward = links.following if ring[(ring.index(me) + 1) % len(ring)] != decision.donor else None
        buffer = shared.pool.take()
        committed, ticket = resend.receive(links.previous, onward, decision.furthest, self._cut, buffer)
        if chain.follow(committed.settled.chain, buffer) != committed.chain:
            raise LinkBroken("previous", f"diverged: the result of step {decision.furthest} arrived other than it was")
        if me in decision.lacking:
            self._commit(Result(buffer, committed, onward, ticket))
            shared.adopt(decision.step, decision.owners)

    def _check_kept(self, held: Result) -> None:
        """A result that has changed while it was kept is not sent; it is lost, and so is who has yet to apply it.

        Raises:
            LinkBroken: it has changed: the roll is called anew.
        """
        found = chain.follow(held.of.settled.chain, held.buffer)
        if found == held.of.chain:
            return
        shared, step = self._shared, held.of.step
        why = f"diverged: the result of step {step} has changed while it was kept"
        with shared.cv:
            if shared.main_step is not None and shared.main_step > step:
                shared.results.pop(step)
            else:
                shared.stray(why, Wrong(self._identity.worker, "result", found, held.of.chain, "own"))
        raise LinkBroken("next", why)


def member_of(world: WorldChanged, shared: Exchange) -> Member | None:
    """Our own entry in a world, None if we are not in it."""
    return next((m for m in world.members if m.worker == shared.worker and m.incarnation == shared.incarnation), None)
