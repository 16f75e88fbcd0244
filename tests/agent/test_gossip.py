"""Agents find each other and say whom they miss: real ones, over a real broker."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reknit.core.bus_thread import BusThread
from reknit.core.context import Endpoint
from reknit.core.events import AgentJoined, Alert, NodePulse
from support.agents import AgentUnderTest, until
from support.service_process import ServiceProcess

Make = Callable[..., AgentUnderTest]

FOREVER = """
import time
while True:
    time.sleep(0.05)
"""


@contextmanager
def heartbeats(one: AgentUnderTest) -> Iterator[dict[str, NodePulse]]:
    """Node -> its newest heartbeat."""
    newest: dict[str, NodePulse] = {}

    def hear(_job: str, pulse: object) -> None:
        if isinstance(pulse, NodePulse):
            newest[pulse.node] = pulse

    bus = BusThread(one.endpoint, "test")
    bus.start()
    try:
        bus.pulses(hear, job=one.job)
        yield newest
    finally:
        bus.close()


def test_agents_meet_by_the_log_and_tell_whom_they_miss(make_agent: Make) -> None:
    fields = {"job": "gossip", "gossip": "fast", "secret": "s"}
    nodes = {name: make_agent(FOREVER, folder=name, node=name, **fields) for name in ("n0", "n1", "n2")}
    first = nodes["n0"].submit()
    for node in nodes.values():
        node.start()
    with heartbeats(first) as newest:
        until(lambda: len(newest) == 3 and all(len(p.rtt) == 2 for p in newest.values()), "each measures both others")
        assert len({p.view for p in newest.values()}) == 1, "they see the same"
        assert all(e.gossip for e in first.events(AgentJoined))
        nodes["n2"].signal(signal.SIGSTOP)
        try:
            until(lambda: newest["n0"].silent == newest["n1"].silent == ("n2",), "both miss it")
        finally:
            nodes["n2"].signal(signal.SIGCONT)
        until(lambda: not newest["n0"].silent and not newest["n1"].silent, "and hear it again")
        nodes["n2"].signal(signal.SIGTERM)
        assert nodes["n2"].wait() == 0
        until(lambda: set(newest["n0"].rtt) == {"n1"}, "who has left is watched by nobody")


def test_agents_meet_by_seeds(make_agent: Make) -> None:
    """Of two jobs, so that the log tells neither of the other."""
    fields = {"gossip": "fast", "secret": "s"}
    first = make_agent(FOREVER, folder="a", node="a", job="ga", **fields).submit().start()
    port = first.event(AgentJoined).gossip.rpartition(":")[2]
    seeds = (f"localhost:{port}", "no.such.host.invalid:1")
    second = (
        make_agent(FOREVER, folder="b", node="b", job="gb", gossip="fast", secret="s", seeds=seeds).submit().start()
    )
    with heartbeats(first) as newest:
        until(lambda: newest and set(newest["a"].rtt) == {"b"}, "it knows the one that was told of it")
    second.says("a seed of the gossip is left out: the name 'no.such.host.invalid' does not resolve")


@pytest.mark.parametrize("gossip", ["off", ""])
def test_without_gossip_there_is_no_address(make_agent: Make, gossip: str) -> None:
    one = make_agent(FOREVER, **({"gossip": gossip} if gossip else {})).submit().start()
    assert one.event(AgentJoined).gossip == ""


SET_BACK = """
import time

time.time = lambda real=time.time: real() - 3600.0
time.time_ns = lambda real=time.time_ns: real() - 3_600_000_000_000
"""


def test_a_host_whose_clock_was_set_back_comes_back_at_another_port(make_agent: Make, tmp_path: Path) -> None:
    """Whose word about a name is the newer one is the log's to say, and no clock's."""
    fields = {"job": "back", "gossip": "fast", "secret": "s"}
    nodes = {name: make_agent(FOREVER, folder=name, node=name, **fields) for name in ("n0", "n1", "n2")}
    first = nodes["n0"].submit()
    for node in nodes.values():
        node.start()
    with heartbeats(first) as newest:
        until(lambda: len(newest) == 3 and all(len(p.rtt) == 2 for p in newest.values()), "each measures both others")
        nodes["n2"].signal(signal.SIGKILL)
        nodes["n2"].wait()
        (tmp_path / "sitecustomize.py").write_text(SET_BACK)
        again = make_agent(FOREVER, folder="again", node="n2", **fields).start({"PYTHONPATH": str(tmp_path)})

        def joined() -> list[AgentJoined]:
            return [e for e in first.events(AgentJoined) if e.node == "n2"]

        before, after = until(lambda: joined() if len(joined()) == 2 else None, "it is back")
        assert before.gossip != after.gossip
        assert after.pid == again.pid

        def agree() -> bool:
            views = {pulse.view for pulse in newest.values()}
            return len(views) == 1 and not any(p.silent or p.sick or len(p.rtt) != 2 for p in newest.values())

        newest.clear()
        until(lambda: len(newest) == 3 and agree(), "all see the same, and each hears the others")


@pytest.mark.slow
def test_an_agent_with_other_keys_is_named_by_the_monitor_until_it_has_the_right_ones(
    make_agent: Make, endpoint: Endpoint, tmp_path: Path
) -> None:
    right, wrong = "11" * 32, "22" * 32
    nodes = {}
    for name in ("n0", "n1", "n2"):
        keys = tmp_path / f"{name}.keys"
        keys.write_text((wrong if name == "n2" else right) + "\n")
        nodes[name] = make_agent(
            FOREVER, folder=name, node=name, job="keys", gossip="fast", secret="s", gossip_keys=str(keys)
        )
    first = nodes["n0"].submit()

    def alerts() -> list[tuple[str, str]]:
        return [(a.subject, a.state) for a in first.events(Alert) if a.alert == "gossip-keys-differ"]

    with ServiceProcess("monitor", endpoint), heartbeats(first) as newest:
        for node in nodes.values():
            node.start()
        until(lambda: alerts() == [("n2", "raised")], "the one with other keys is named", 60.0)
        (alert,) = (a for a in first.events(Alert) if a.alert == "gossip-keys-differ")
        assert "of 2 other nodes" in alert.reason
        assert "--gossip-keys" in alert.suggestion
        assert newest["n0"].refused_of == newest["n1"].refused_of == 1
        (tmp_path / "n2.keys").write_text(f"{right}\n{wrong}\n")
        until(lambda: alerts() == [("n2", "raised"), ("n2", "cleared")], "it is over", 60.0)
        until(lambda: all(len(p.rtt) == 2 for p in newest.values()), "each hears both others")
