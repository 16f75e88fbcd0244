"""A node in quarantine: no workers are started that would not be let in."""

from __future__ import annotations

import pytest

from reknit.core.events import NodeHeld
from reknit.worker.agent.actions import Fork, Say
from reknit.worker.agent.roster import entries
from support.nodes import Node

AHEAD = 1.7e9


def held(node: Node, seconds: float = 60.0, cause: str = "failing", *, of: str = "w0", run: str = "run") -> None:
    until = node.now + AHEAD + seconds
    event = NodeHeld(node=of, run=run, cause=cause, until=until, seconds=seconds, reason="3 failed")  # type: ignore[arg-type]
    node.hear(event, ahead=AHEAD)


def forked(node: Node) -> list[str]:
    return [fork.worker for fork in node.all(Fork)]


def test_nothing_is_started_until_it_is_over_and_who_lives_goes_on() -> None:
    node = Node().train()
    held(node)
    node.did.clear()
    node.exit(1, 1)
    node.tick(59.0)
    assert forked(node) == []
    assert [place.phase for place in node.state.places] == ["alive", "waiting"]
    assert "kept out: 3 failed" in entries(node.state, {}, {}, address="h", version="1", since=0.0)[0].reason
    node.tick(1.0)
    assert forked(node) == ["w0-1"]
    assert any("not kept out any more" in said.text for said in node.all(Say))
    node.fork()
    node.exit(1, 1)
    node.tick(1.0)
    assert forked(node) == ["w0-1", "w0-1"], "as usual again"


def test_where_nobody_trains_it_is_started_all_the_same() -> None:
    node = Node().train()
    held(node)
    node.did.clear()
    node.exit(1, 1)
    assert forked(node) == []
    node.world(0, status="paused")
    assert forked(node) == ["w0-1"], "the run may need it"


def test_an_agent_that_comes_again_reads_that_it_is_kept_out() -> None:
    node = Node(begin=False)
    node.world(status="running")
    held(node, 30.0)
    node.joined()
    assert forked(node) == []
    node.tick(30.5)
    assert forked(node) == ["w0-0", "w0-1"]


@pytest.mark.parametrize(
    "other", [{"cause": "flapping"}, {"of": "w1"}, {"run": "another"}, {"seconds": -1.0}], ids=lambda o: next(iter(o))
)
def test_what_does_not_keep_its_workers_out(other: dict[str, object]) -> None:
    node = Node().train()
    held(node, **other)  # type: ignore[arg-type]
    node.did.clear()
    node.exit(1, 1)
    assert forked(node) == ["w0-1"]


def test_a_broker_whose_clock_was_set_back_keeps_nobody_for_longer_than_it_said() -> None:
    node = Node().train()
    event = NodeHeld(node="w0", run="run", cause="failing", until=AHEAD + 9999.0, seconds=60.0)
    node.hear(event, ahead=AHEAD)
    node.did.clear()
    node.exit(1, 1)
    node.tick(60.5)
    assert forked(node) == ["w0-1"]
