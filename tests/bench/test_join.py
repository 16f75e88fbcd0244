"""What the join benchmark makes of a log and of notes, and that it fails when it must."""

from __future__ import annotations

import pytest
from join import AFTER, BAR, Join, join_of, misses, stages_of, summary
from steplog import Done

from reknit.core.bus import Received
from reknit.core.events import (
    Event,
    Range,
    RingLinked,
    ShardsPlanned,
    Terms,
    WorkerCaughtUp,
    WorkerRegistered,
    WorkerStarted,
    WorldChanged,
)

SINCE, ASKED = 96.0, 100.0
ACTIVE = 101.0


def received(time: float, event: Event) -> Received:
    return Received(event, "bench", 1, "id", "source", time, "")


def started(worker: str) -> Event:
    return WorkerStarted(worker=worker, incarnation=1, node="n", pid=9)


LOG = [
    received(99.0, started("old")),
    received(100.1, started("new")),
    received(
        100.3,
        WorkerRegistered(
            worker="new",
            incarnation=1,
            node="n",
            run="r",
            pid=9,
            address="",
            terms=Terms(slots=2, micro_batch=1, samples=1, epochs=1, seed=0),
        ),
    ),
    received(100.4, WorldChanged(generation=2, run="r", status="running", added=("new",))),
    received(100.42, RingLinked(worker="old", incarnation=1, generation=2, step=1)),
    received(100.44, RingLinked(worker="new", incarnation=1, generation=2, step=1)),
    received(100.6, WorkerCaughtUp(worker="new", incarnation=1, generation=2, step=5)),
    received(
        100.61,
        ShardsPlanned(
            generation=2,
            version=2,
            slots=2,
            ranges=(Range(worker="old", first=0, end=1), Range(worker="new", first=1, end=2)),
        ),
    ),
]


def steps(pause: float, calm_pause: float = 0.0) -> list[Done]:
    """Steps of 0.1 s; one is longer by `pause` after the request, another one by `calm_pause` before it."""
    notes, time, number = [], SINCE - 1.0, 0
    while time < ACTIVE + AFTER + 0.5:
        step = 0.1
        if time < ASKED - 1.0 <= time + step:
            step += calm_pause
        if time < ASKED + 0.5 <= time + step:
            step += pause
        time, number = time + step, number + 1
        notes.append(Done(number, 1, time, 1, "old", 1))
    return notes


def test_a_gap_is_what_a_step_took_longer_while_one_joined():
    join = join_of(steps(0.07, calm_pause=0.02), LOG, {1}, since=SINCE, asked=ASKED, active=ACTIVE)
    assert join.step_s == pytest.approx(0.1, abs=1e-3)
    assert join.gap_s == pytest.approx(0.07, abs=1e-3)
    assert join.calm_gap_s == pytest.approx(0.02, abs=1e-3)
    assert join.active_after_s == pytest.approx(0.9)
    ((end, excess),) = join.long_gaps
    assert 0.5 <= end <= 0.7
    assert excess == join.gap_s


def test_a_process_that_stops_for_good_is_a_gap():
    stopped = [note for note in steps(0.0) if note.time < ASKED + 0.2]
    assert join_of(stopped, LOG, {1}, since=SINCE, asked=ASKED, active=ACTIVE).gap_s > 1.0


def test_stages_are_those_of_the_joiner():
    assert stages_of(LOG, ASKED) == pytest.approx(
        {"forked": 0.1, "registered": 0.3, "world": 0.4, "linked": 0.44, "caught_up": 0.6, "planned": 0.61}
    )


def test_without_steps_or_joiner_there_is_nothing_to_tell():
    with pytest.raises(ValueError, match="no step before"):
        join_of([], LOG, {1}, since=SINCE, asked=ASKED, active=ACTIVE)
    with pytest.raises(ValueError, match="no worker was started"):
        join_of(steps(0.0), LOG[:1], {1}, since=SINCE, asked=ASKED, active=ACTIVE)


def join(gap: float) -> Join:
    return Join(gap, 0.0, 1.0, 0.1, {}, [], 0.0, 0.0)


def test_the_document_has_exactly_the_promised_keys():
    found = summary([join(0.01), join(0.02), join(0.09)])
    assert found == {"gap_s": {"median": 0.02, "max": 0.09}, "active_after_s": {"median": 1.0}}


def test_it_says_when_it_misses_its_bar():
    assert misses(summary([join(BAR), join(BAR), join(9.0)])) == []
    assert misses(summary([join(BAR + 0.001)])) == ["median gap 0.051 s, bar 0.05 s"]
    assert misses(summary([])) == ["median gap None s, bar 0.05 s"]
