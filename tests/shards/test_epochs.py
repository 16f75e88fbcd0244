"""Epochs are announced once each, when all their steps are on the final line."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.core.events import CheckpointRestored, EpochFinished, JobSubmitted, Range, StepsCommitted, Terms
from reknit.core.ledger import verify
from reknit.services.shards.decide import decide
from reknit.services.shards.view import View
from support.desk import Desk
from support.history import member, random_history, registered, world

TERMS = Terms(slots=2, micro_batch=5, samples=45, epochs=3, seed=1)  # 5 steps an epoch


def record(first: int, last: int, generation: int = 1, run: str = "r1") -> StepsCommitted:
    ranges = (Range(worker="a", first=0, end=2),)
    return StepsCommitted(run=run, first=first, last=last, generation=generation, ranges=ranges, slots=2)


def desk() -> Desk[View]:
    log: Desk[View] = Desk(decide, View("j"))
    log.publish(JobSubmitted(run="r1", script="t.py"), registered("a", TERMS), world(1, member("a")))
    return log


def epochs(log: Desk[View]) -> list[int]:
    return [e.epoch for e in log.events(EpochFinished)]


def test_an_epoch_is_announced_with_its_last_step() -> None:
    log = desk()
    log.publish(record(0, 3))
    assert not epochs(log)
    log.publish(record(4, 4))
    assert log.events(EpochFinished) == [EpochFinished(run="r1", epoch=0, steps=5, samples=45)]
    log.publish(record(5, 14))
    assert epochs(log) == [0, 1, 2]


def test_a_hole_or_a_bad_record_holds_the_epoch_back_until_it_is_filled() -> None:
    log = desk()
    log.publish(record(0, 1), record(3, 4))
    bad = StepsCommitted(run="r1", first=2, last=2, generation=1, ranges=(), slots=2)
    log.publish(bad)
    assert not epochs(log)
    log.publish(record(2, 2))
    assert epochs(log) == [0]


def test_repeated_records_and_a_restart_announce_nothing_twice() -> None:
    log = desk()
    log.publish(record(0, 4), record(0, 4), record(3, 5))
    log.restart(View("j"))
    log.tick(5)
    log.publish(record(0, 4))
    assert epochs(log) == [0]


def test_a_restore_takes_steps_back() -> None:
    log = desk()
    log.publish(record(0, 8), world(2, member("b")))
    log.publish(CheckpointRestored(run="r1", checkpoint="c", step=6, worker="b", generation=2))
    log.publish(record(9, 9))  # late words of the lost line
    assert epochs(log) == [0]
    log.publish(record(6, 8, generation=2))
    assert epochs(log) == [0]
    log.publish(record(9, 9, generation=2))
    assert epochs(log) == [0, 1]


def test_a_run_that_resumes_announces_the_epoch_that_two_runs_share() -> None:
    log = desk()
    log.publish(record(0, 8))
    log.publish(registered("a", TERMS, "r2"), world(2, member("a"), run="r2"))
    log.publish(CheckpointRestored(run="r2", checkpoint="c", step=7, worker="a", generation=2))
    log.publish(record(7, 9, generation=2, run="r2"))
    assert [(e.run, e.epoch) for e in log.events(EpochFinished)] == [("r1", 0), ("r2", 1)]


def test_a_fresh_run_owes_nothing_to_the_one_before() -> None:
    log = desk()
    log.publish(record(0, 3), registered("a", TERMS, "r2"), world(2, member("a"), run="r2"))
    log.publish(record(4, 4, generation=2, run="r2"))
    assert not epochs(log)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_in_random_histories_each_epoch_is_announced_once_as_the_ledger_says(seed: int) -> None:
    history = random_history(seed)
    rng = random.Random(seed)
    log: Desk[View] = Desk(decide, View("j"))
    *events, end = history.events
    for event in events:
        log.publish(event)
        if rng.random() < 0.05:
            log.restart(View("j"))
            log.tick(0.25)
    log.publish(end)
    proof = verify([event for event, _ in log.log])
    assert proof.ok
    assert sorted(epochs(log)) == [e.epoch for e in proof.epochs if e.once]
