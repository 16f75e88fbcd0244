"""What is known of each node: what `reknit nodes` shows."""

from __future__ import annotations

import time

from reknit.cli.nodes import row
from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    AnyEvent,
    JobFinished,
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
        status = see(status, event, now=float(at), wall=1000.0 + at, seq=at + 1)
    return status


def beat(status: Status, *names: str, now: float = 10.0) -> Status:
    for name in names:
        status = hear(status, NodePulse(node=name), now)
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
    assert (by["b"]["state"], by["b"]["reason"], by["b"]["up"]) == ("gone", "drained: rack 3", False)
    assert (by["a"]["workers"], by["b"]["workers"]) == (1, 0)
    assert by["b"]["gone_at"] == 1006.0
    assert str(row(by["b"], 10.0)[2]).startswith("gone since ")
    status = beat(see(status, came("b"), 9.0, 1009.0, 9), "b")
    by = {n["node"]: n for n in nodes(status, 10.0, 10.0)}
    assert (by["b"]["state"], by["b"]["reason"], by["b"]["flaps"], by["b"]["gone_at"]) == ("up", "", 1, 0.0)


def test_an_agent_that_nobody_hears_is_not_called_up() -> None:
    status = beat(told(JobSubmitted(run="r1", script="t.py"), came("a"), came("b"), held("b", "failing", 2000.0)), "b")
    a, b = nodes(status, 11.0, 1500.0)
    assert (a["state"], b["state"]) == ("silent", "quarantined")
    assert "killed, stopped, or cut off" in a["reason"]
    a, b = nodes(status, 14.0, 1500.0)
    assert (b["state"], b["silent"]) == ("silent", 4.0)
    assert "until" not in str(row(b, 1500.0)[2]), "kept out all the same"
    assert row(b, 1500.0)[7]
    status = beat(status, "a", "b", now=15.0)
    assert [n["state"] for n in nodes(status, 15.0, 1500.0)] == ["up", "quarantined"]


def test_where_nobody_of_the_job_is_there_who_did_not_leave_is_gone_too() -> None:
    status = told(JobSubmitted(run="r1", script="t.py"), came("a"))
    (a,) = nodes(status, 99.0, live=False)
    assert (a["state"], a["gone_at"]) == ("gone", 1001.0)
    assert "did not say that it leaves" in a["reason"]
    status = see(status, JobFinished(run="r1", outcome="completed"), 3.0, 1003.0, 3)
    (a,) = nodes(status, 99.0, live=False)
    assert (a["state"], a["reason"]) == ("gone", "the run is over")


def test_late_words_about_an_agent_before_the_present_one_change_nothing() -> None:
    began = told(JobSubmitted(run="r1", script="t.py"), came("a"), came("a"))  # the second one is number 3
    for late in (AgentLeft(node="a", arrival=2), AgentLeft(node="a", joined=2)):
        assert nodes(see(began, late, 4.0, 1004.0, 4))[0]["state"] == "up", late
    for end in (AgentLeft(node="a", arrival=3, reason="lost"), AgentLeft(node="a", joined=3), AgentLeft(node="a")):
        (a,) = nodes(see(began, end, 4.0, 1004.0, 4))
        assert (a["state"], a["gone_at"]) == ("gone", 1004.0)
        assert a["seen"] == (1002.0 if end.arrival else 1004.0), "what others say of it is no sign of it"
    working = see(began, started("a"), 4.0, 1004.0, 4)
    end = AgentLeft(node="a", arrival=3)
    assert nodes(see(working, end, 5.0, 1005.0, 5))[0]["state"] == "up", "its worker lives: it is back"


def test_when_it_was_heard_last() -> None:
    status = hear(told(JobSubmitted(run="r1", script="t.py"), came("a")), NodePulse(node="a", load=1.5), 7.0)
    (a,) = nodes(status, 9.0)
    assert (a["silent"], a["load"]) == (2.0, 1.5)
    assert row(a, 0.0)[8] == "2.0 s ago"
    (a,) = nodes(told(JobSubmitted(run="r1", script="t.py"), came("a")), 9.0)
    at = time.strftime("%T", time.localtime(1001.0))
    assert (a["state"], a["silent"], row(a, 0.0)[8]) == ("silent", None, f"last event {at}"), "that is no heartbeat"
    (a,) = nodes(told(JobSubmitted(run="r1", script="t.py"), came("a")), 9.0, live=False)
    assert row(a, 0.0)[2] == "gone", "nobody knows since when"


def test_another_run_begins_anew() -> None:
    status = told(JobSubmitted(run="r1", script="t.py"), came("a"), came("a"), held("a", "flapping", 9e9))
    status = Status("j", nodes=status.nodes)
    status = see(status, JobSubmitted(run="r2", script="t.py"), 5.0, 1005.0)
    (a,) = nodes(status, wall=0.0)
    assert (a["flaps"], a["state"]) == (0, "up")
