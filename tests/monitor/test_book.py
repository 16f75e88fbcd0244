"""The alert book: once raised, once cleared, numbered, no storm, and a restarted monitor says nothing twice."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.core.events import Alert, WorkerCaughtUp, WorkerExited, WorkerStuck
from reknit.services.monitor.book import alert_id, damping
from support.history import random_history
from support.watched import Watched, fresh


def stuck(state: str, worker: str = "w2-0") -> WorkerStuck:
    return WorkerStuck(worker=worker, incarnation=1, node="w2", state=state)


def test_raised_and_cleared_share_a_number_and_the_next_incident_has_the_next() -> None:
    job = Watched("w1-0", "w2-0")
    for _ in range(2):
        job.publish(stuck("T stopped"), stuck("R running"))
        job.tick(1)
    alerts = job.events(Alert)
    assert [(a.state, a.number) for a in alerts] == [("raised", 1), ("cleared", 1), ("raised", 2), ("cleared", 2)]
    assert alert_id("j", alerts[0]) == "alert/j/worker-stuck/w2-0/1/raised"


def test_ten_minutes_of_one_cause_are_two_messages() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(5)
    job.publish(stuck("T stopped"))
    job.beat(600, steps=1)
    job.publish(stuck("R running"))
    assert [(a.alert, a.state) for a in job.events(Alert)] == [("worker-stuck", "raised"), ("worker-stuck", "cleared")]


def test_what_comes_and_goes_becomes_one_long_alert() -> None:
    job = Watched("w1-0", "w2-0")
    for _ in range(100):
        job.publish(stuck("T stopped"))
        job.beat(1)
        job.publish(stuck("R running"))
        job.beat(1)
    assert len(job.events(Alert)) < 12
    job.beat(320)
    assert job.events(Alert)[-1].state == "cleared"
    assert [damping((1.0,) * n) for n in (0, 1, 2, 3, 4, 20)] == [0.0, 0.0, 0.0, 10.0, 20.0, 300.0]


def test_a_monitor_killed_at_any_moment_raises_and_clears_nothing_twice() -> None:
    job = Watched("w1-0", "w2-0")
    job.beat(12)
    job.publish(stuck("T stopped"))
    job.restart_monitor()
    job.beat(5)
    job.restart_monitor()
    job.publish(stuck("R running"))
    job.restart_monitor()
    job.beat(5)
    assert [(a.state, a.number) for a in job.events(Alert)] == [("raised", 1), ("cleared", 1)]


def test_an_alert_that_rests_on_heartbeats_survives_a_restart_of_the_monitor() -> None:
    job = Watched("w1-0", "w2-0", "w3-0")
    job.beat(15)
    job.beat(15, compute_seconds={"w2-0": 0.5})
    for _ in range(3):
        job.restart_monitor()
        job.beat(25, compute_seconds={"w2-0": 0.5})
    assert job.told() == [("straggler", "w2-0", "raised")]
    job.restart_monitor()
    job.beat(25)
    assert job.told()[1:] == [("straggler", "w2-0", "cleared")]


def test_what_was_decided_and_not_stored_is_decided_again_with_the_same_id() -> None:
    job = Watched("w1-0", "w2-0")
    job.lose = True
    job.publish(stuck("T stopped"))
    assert job.events(Alert) == []
    job.restart_monitor()
    job.lose = False
    job.tick(3)
    assert [a.state for a in job.events(Alert)] == ["raised"]
    assert len({out.id for out in job.said}) == 1


def test_people_are_told_of_live_alerts_only() -> None:
    job = Watched("w1-0", "w2-0")
    job.publish(stuck("T stopped"))
    assert [(n.alert.alert, n.id) for n in job.done] == [("worker-stuck", "alert/j/worker-stuck/w2-0/1/raised")]
    job.restart_monitor()
    job.tick(5)
    assert len(job.done) == 1


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_in_random_histories_alerts_come_in_pairs_and_replay_gives_the_same_status(seed: int) -> None:
    rng = random.Random(seed)
    job = Watched("x-0")
    job.state, job.log = fresh(), []
    for event in random_history(seed).events:
        job.publish(event)
        if isinstance(event, WorkerCaughtUp) and rng.random() < 0.3:
            job.publish(WorkerExited(worker=event.worker, incarnation=event.incarnation, node="n", pid=1))
        job.tick(0.5)
        if rng.random() < 0.1:
            job.restart_monitor()
    job.tick(40)
    open_now: dict[tuple[str, str], int] = {}
    for alert in job.events(Alert):
        key = (alert.alert, alert.subject)
        if alert.state == "raised":
            assert key not in open_now
            open_now[key] = alert.number
        else:
            assert open_now.pop(key) == alert.number
    assert set(open_now) == set(job.state.status.alerts)
    # the run completed: nothing is left but what happened to processes that died for good
    assert {alert for alert, _ in open_now} <= {"job-failed"}, open_now
    replayed = job.replayed(fresh()).status
    times = {"changed": 0.0, "began": 0.0, "moved": None, "ahead": (0, 0)}
    assert _plain(replayed, times) == _plain(job.state.status, times)


def _plain(status: object, times: dict[str, object]) -> object:
    """The status less the times at which it was heard."""
    import dataclasses

    plain = {f.name: getattr(status, f.name) for f in dataclasses.fields(status)} | times
    plain["workers"] = {n: dataclasses.replace(w, since=0.0) for n, w in plain["workers"].items()}
    plain["saving"] = dataclasses.replace(plain["saving"], at=None)
    return msgspec.to_builtins({k: v for k, v in plain.items() if k not in ("alerts", "numbers")}) | {
        "alerts": {repr(k): v for k, v in plain["alerts"].items()},
        "numbers": {repr(k): v for k, v in plain["numbers"].items()},
    }
