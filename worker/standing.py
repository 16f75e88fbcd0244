"""Where this worker stands towards the worlds: registered, member, left out, candidate.

Registered, and the first world has us in it: member. A world without us goes on: candidate, that follows the members'
run from outside until a world has us in it. A member that a world leaves out although it lives registers anew once its
main thread is back in the ring's hands, and is a candidate then.
"""

from __future__ import annotations

from collections.abc import Callable

from reknit.core.events import WorldChanged

from .calling import member_of
from .candidate import Candidate
from .exchange import Exchange


class Standing:
    """Follows the worlds for the engine thread.

    Args:
        shared: what is shared with the main thread.
        candidate: follows the run from outside.
        register: announces this worker (again); gets the incarnation and the last step that it holds.
    """

    def __init__(self, shared: Exchange, candidate: Candidate, register: Callable[[int, int], None]) -> None:
        self._shared = shared
        self._candidate = candidate
        self._register = register
        self._following = False
        self._looked = 0

    def next_world(self) -> WorldChanged | None:
        """Wait for a newer running world with us in it; None when there is nothing more to do."""
        shared = self._shared
        while not shared.closed:
            with shared.cv:
                world = self._news()
                if world is None:
                    if shared.phase not in {"starting", "learn"}:
                        shared.enter("wait")
                    shared.cv.wait()
                    continue
                here = member_of(world, shared) is not None
                out = not here and shared.listed
                # a candidate owes nobody anything: asked to leave, it leaves
                if world.status == "finished" or (shared.leaving and (not here or world.status == "paused")):
                    shared.left = world.reason or "the run is over"
                    shared.cv.notify_all()
                    return None
                if world.status == "running" and here:
                    shared.generation = world.generation
                    if not self._following:
                        shared.enter("mend")
                    return world
                if out:
                    self._left_out()
                self._looked = world.generation
                follow = not here and bool(world.members) and not shared.left_out
                held = shared.step - 1 if shared.whole else None
            if follow:  # without the lock, as the candidate's own threads take it
                self._following = True
                self._candidate.follow(world.members, world.generation, held)
        return None

    def enter(self, world: WorldChanged) -> None:
        """We are a member now: what was missed while we were none is taken in first."""
        if not self._following:
            return
        shared = self._shared
        ended = not shared.learning and self._candidate.wait_end(world.members, world.generation, shared.moved)
        self._candidate.stop()
        self._following = False
        with shared.cv:
            shared.current = shared.whole and (shared.current or ended)
            shared.enter("mend")

    def note_unfit(self) -> None:
        """Our weights are not the run's; a candidate begins anew (a member does by the next roll call)."""
        self._candidate.note_unfit()

    def come_back(self) -> None:
        """Register again, as a new member (main thread: one that hangs in the script's code must not come back)."""
        shared = self._shared
        with shared.cv:
            shared.left_out = shared.listed = False
            shared.incarnation += 1
            held = shared.step - 1 if shared.whole else -1
            self._looked = 0
            shared.cv.notify_all()
        self._register(shared.incarnation, held)

    def close(self) -> None:
        """End following; not to be called with `shared.cv` held."""
        self._candidate.stop()

    def _news(self) -> WorldChanged | None:
        """The newest world, if it has not been looked at, or not since we were asked to leave."""
        world = self._shared.world
        if world is None or world.generation <= self._shared.generation:
            return None
        return world if world.generation > self._looked or self._shared.leaving else None

    def _left_out(self) -> None:
        """A world went on without us although we live: the main thread, once it is back, asks to be taken in again."""
        self._shared.current = False
        self._shared.left_out = True
        self._shared.cv.notify_all()
