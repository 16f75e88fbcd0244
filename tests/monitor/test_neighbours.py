"""Nodes that their neighbours miss while we hear them."""

from __future__ import annotations

from reknit.core.events import AgentJoined
from reknit.gossip.preset import TRAIN
from reknit.gossip.tally import observers
from support.watched import Watched

NODES = ("w1", "w2", "w3", "w4", "w5", "w6")
WATCHED = observers(NODES, TRAIN)


def job() -> Watched:
    found = Watched(*(f"{node}-0" for node in NODES))
    for node in NODES:
        found.publish(AgentJoined(node=node, run="r1", host="127.0.0.1", pid=1, nproc=1, gossip="127.0.0.1:1"))
    found.beat(5)
    return found


def told(found: Watched) -> list[tuple[str, str, str]]:
    return [t for t in found.told("warning") if t[0] in ("node-out-of-reach", "node-sick")]


def test_one_whom_enough_neighbours_miss_is_said_and_says_so_when_it_is_over() -> None:
    found = job()
    found.misses = dict.fromkeys(WATCHED["w3"], ("w3",))
    found.beat(4)
    assert told(found) == []
    found.beat(4)
    assert told(found) == [("node-out-of-reach", "w3", "raised")]
    assert "it stays" in found.alert("node-out-of-reach").reason
    found.misses = {}
    found.beat(4)
    assert told(found)[1:] == [("node-out-of-reach", "w3", "cleared")]


def test_one_neighbour_alone_says_nothing() -> None:
    found = job()
    found.misses = {WATCHED["w3"][0]: ("w3",)}
    found.beat(20)
    assert told(found) == []


def test_a_node_that_is_not_heard_is_another_alert() -> None:
    found = job()
    found.misses = dict.fromkeys(WATCHED["w3"], ("w3",))
    found.beat(30, silent=("w3", "w3-0"))
    assert told(found) == []


def test_one_that_reaches_nobody_is_said() -> None:
    found = job()
    found.sick = {"w2"}
    found.beat(8)
    assert told(found) == [("node-sick", "w2", "raised")]


def test_one_whose_keys_are_not_those_of_the_others_is_named_until_it_has_theirs() -> None:
    found = job()
    found.received = {"w2": (40, 5, 0), "w1": (8, 1, 4)}
    found.beat(4)
    keys = [t for t in found.told() if t[0] == "gossip-keys-differ"]
    assert keys == []
    found.beat(4)
    raised = found.alert("gossip-keys-differ")
    assert raised.subject == "w2"
    assert "w2 has refused 40 datagrams of 5 other nodes" in raised.reason
    assert "--gossip-keys" in raised.suggestion
    found.received = {"w2": (7, 1, 4)}
    found.beat(2)
    keys = [t for t in found.told() if t[0] == "gossip-keys-differ"]
    assert keys == [("gossip-keys-differ", "w2", "raised"), ("gossip-keys-differ", "w2", "cleared")]
