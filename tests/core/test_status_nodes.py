"""What is known of each node: what `reknit nodes` shows."""

from __future__ import annotations

from reknit.cli.nodes import row
from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    AnyEvent,
    JobSubmitted,
    NodeHeld,
    NodePulse,
    WorkerExited,
    WorkerFinished,
    WorkerLeaving,
    WorkerStarted,
)
from reknit.core.status import Status, report
from reknit.core.status_fold import hear, see
from reknit.core.status_nodes import nodes
from support.history import member, world


def came(node: str, run: str = "r1") -> AgentJoined:
    return AgentJoined(node=node, run=run, host=f"host-{node}", pid=1, nproc=1)


def exited(node: str, code: int = -9, *, expected: bool = False, incarnation: int = 1) -> WorkerExited:
    return WorkerExited(worker=f"{node}-0", incarnation=incarnation, node=node, pid=1, code=code, expected=expected)


def started(node: str, incarnation: int = 1) -> WorkerStarted:
    return WorkerStarted(worker=f"{node}-0", incarnation=incarnation, node=node, pid=1)


def held(node: str, cause: str, until: float) -> NodeHeld:
    return NodeHeld(node=node, run="r1", cause=cause, until=until, reason=f"{cause} it is")  # type: ignore[arg-type]


def told(*events: AnyEvent) -> Status:
    status = Status("j")
    for at, event in enumerate(events):
        status = see(status, event, now=float(at), wall=1000.0 + at)
    return status


def test_how_often_it_came_back_and_how_often_its_workers_ended() -> None:
    status = told(
        JobSubmitted(run="r1", script="t.py"),
        came("a"),
        came("b"),
        started("a"),
        exited("a"),
        exited("a"),  # told twice
        started("a", 2),
        exited("a", 1, incarnation=2),
        came("a"),
        came("a"),
    )
    a, b = nodes(status)
    assert (a["node"], a["host"], a["state"], a["flaps"], a["restarts"]) == ("a", "host-a", "up", 2, 2)
    assert (b["flaps"], b["restarts"], b["seen"]) == (0, 0, 1002.0)
    assert a["seen"] == 1009.0
    assert [(n["node"], n["flaps"], n["restarts"]) for n in report(status)["nodes"]] == [("a", 2, 2), ("b", 0, 0)]


def test_ends_that_were_asked_for_or_are_no_fault_do_not_count() -> None:
    for before, end in (
        ([started("a")], exited("a", expected=True)),
        ([started("a")], exited("a", code=0)),
        ([started("a"), WorkerLeaving(worker="a-0", incarnation=1)], exited("a", code=0)),
        ([started("a"), WorkerFinished(worker="a-0", incarnation=1, generation=1, step=9)], exited("a", code=0)),
    ):
        status = told(JobSubmitted(run="r1", script="t.py"), came("a"), *before, end)
        assert nodes(status)[0]["restarts"] == 0, before


def test_who_is_kept_out_why_and_until_when() -> None:
    status = told(JobSubmitted(run="r1", script="t.py"), came("a"), held("a", "flapping", 2000.0))
    (a,) = nodes(status, wall=1990.0)
    assert (a["state"], a["held_until"], a["reason"]) == ("held", 2000.0, "flapping it is")
    assert row(a, 1990.0)[2] == "held"
    assert "(10 s)" in str(row(a, 1990.0)[7])
    status = see(status, held("a", "failing", 3000.0), 9.0, 1009.0)
    (a,) = nodes(status, wall=1990.0)
    assert (a["state"], a["quarantined_until"], a["reason"]) == ("quarantined", 3000.0, "failing it is")
    (a,) = nodes(status, wall=3000.0)
    assert (a["state"], a["reason"], row(a, 3000.0)[7]) == ("up", "", "")
    assert nodes(status)[0]["state"] == "up", "a log that nobody adds to keeps nobody out"


def test_a_node_that_left_and_how_many_take_part() -> None:
    status = told(
        JobSubmitted(run="r1", script="t.py"),
        came("a"),
        came("b"),
        started("a"),
        started("b"),
        world(1, member("a-0"), added=("a-0",)),
        AgentLeft(node="b", reason="drained: rack 3"),
    )
    by = {n["node"]: n for n in nodes(status, 10.0, 10.0)}
    assert (by["b"]["state"], by["b"]["reason"], by["b"]["up"]) == ("left", "drained: rack 3", False)
    status = see(status, came("b"), 9.0, 1009.0)
    by = {n["node"]: n for n in nodes(status, 10.0, 10.0)}
    assert (by["b"]["state"], by["b"]["reason"], by["b"]["flaps"]) == ("up", "", 1)


def test_when_it_was_heard_last() -> None:
    status = hear(told(JobSubmitted(run="r1", script="t.py"), came("a")), NodePulse(node="a", load=1.5), 7.0)
    (a,) = nodes(status, 9.0)
    assert (a["silent"], a["load"]) == (2.0, 1.5)
    assert row(a, 0.0)[8] == "2.0 s ago"


def test_another_run_begins_anew() -> None:
    status = told(JobSubmitted(run="r1", script="t.py"), came("a"), came("a"), held("a", "flapping", 9e9))
    status = Status("j", nodes=status.nodes)
    status = see(status, JobSubmitted(run="r2", script="t.py"), 5.0, 1005.0)
    (a,) = nodes(status, wall=0.0)
    assert (a["flaps"], a["state"]) == (0, "up")
