"""The reducer under anything at any time."""

import signal

from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.core.events import (
    DrainAsked,
    JobFinished,
    JobStopAsked,
    WorkerDying,
    WorkerExited,
    WorkerFinished,
    WorkerLeaving,
    WorkerRefused,
    WorkerStarted,
)
from reknit.worker.agent.actions import Action, End, Fork
from reknit.worker.agent.inputs import ForkFailed, Signalled
from support.nodes import Node


class Storm(Node):
    """A node to which anything happens at any time."""

    def __init__(self) -> None:
        super().__init__(2)
        self.exits = 0

    def happen(self, what: str, index: int) -> list[Action]:
        """Let one thing happen to the place of this index, or the last one; return what was done."""
        i = min(index, len(self.state.places) - 1)
        before = len(self.did)
        getattr(self, what)(i)
        return self.did[before:]

    def _dies(self, i: int, code: int) -> None:
        if self.place(i).phase in {"alive", "ending", "killed"}:
            self.exits += self.state.mode != "ended"
            self.exit(i, code)

    def forked(self, _: int) -> None:
        self.fork()

    def fork_failed(self, i: int) -> None:
        self.feed(ForkFailed(self.place(i).worker, "no", self.now))

    def killed(self, i: int) -> None:
        self._dies(i, -9)

    def dying_first(self, i: int) -> None:
        if self.place(i).phase in {"alive", "ending", "killed"}:
            self.dying(i)
            self._dies(i, -9)

    def ended_well(self, i: int) -> None:
        self._dies(i, 0)

    def ended_badly(self, i: int) -> None:
        self._dies(i, 1)

    def registered(self, i: int) -> None:
        if self.place(i).phase in {"alive", "ending", "killed"}:
            self.register(i)

    def taken_in(self, _: int) -> None:
        self.world(*(j for j, p in enumerate(self.state.places) if p.registered))

    def evicted(self, i: int) -> None:
        self.world(*(j for j, p in enumerate(self.state.places) if p.registered and j != i))

    def a_moment(self, _: int) -> None:
        self.tick()

    def a_while(self, _: int) -> None:
        self.tick(40)

    def finished(self, i: int) -> None:
        place = self.place(i)
        self.hear(WorkerFinished(worker=place.worker, incarnation=place.incarnation, generation=1, step=3))

    def leaving(self, i: int) -> None:
        self.hear(WorkerLeaving(worker=self.place(i).worker, incarnation=self.place(i).incarnation))

    def drained(self, i: int) -> None:
        self.hear(DrainAsked(target=self.place(i).worker))

    def more(self, _: int) -> None:
        self.targets(w0=self.state.target + 1)

    def fewer(self, _: int) -> None:
        self.targets(w0=max(0, self.state.target - 1))

    def refused(self, i: int) -> None:
        self.hear(WorkerRefused(worker=self.place(i).worker, incarnation=self.place(i).incarnation, reason="no"))

    def stopped(self, _: int) -> None:
        self.hear(JobStopAsked())

    def signalled(self, _: int) -> None:
        self.feed(Signalled(signal.SIGTERM, self.now))

    def completed(self, _: int) -> None:
        self.hear(JobFinished(run="run", outcome="completed"))

    def failed(self, _: int) -> None:
        self.hear(JobFinished(run="run", outcome="failed", reason="r"))


HAPPENINGS = [name for name in vars(Storm) if not name.startswith("_") and name != "happen"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 2)), max_size=60))
def test_whatever_happens(history: list[tuple[str, int]]) -> None:
    """No two processes of one id, no fork by a node that leaves, each exit published once, and the end is the end."""
    node = Storm()
    for what, index in history:
        ended = node.state.mode == "ended"
        did = node.happen(what, index)
        assert not (ended and did)
        if node.state.mode not in {"running", "ended"}:
            assert not any(isinstance(a, Fork) for a in did)
        if node.state.mode == "ended":
            assert not any(p.phase in {"alive", "ending", "forking", "waiting"} for p in node.state.places)
    assert len(node.all(WorkerExited)) == node.exits
    exits = [(e.worker, e.incarnation) for e in node.all(WorkerExited)]
    assert {(e.worker, e.incarnation) for e in node.all(WorkerDying)} <= set(exits)
    keys = [(e.worker, e.incarnation) for e in node.all(WorkerStarted)]
    assert len(keys) == len(set(keys)) <= len(node.all(Fork))
    assert len(node.all(End)) <= 1
    # and whatever happened, it can be brought to its end
    for _ in range(2):
        node.feed(Signalled(signal.SIGTERM, node.now))
    for _ in range(8):
        node.tick(70)
    assert node.state.mode == "ended"
