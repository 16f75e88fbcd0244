"""The reducer by tables and by replay: when it asks, what it waits for, what it gives up and why."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from reknit.core import wire
from reknit.core.events import (
    MAKES_WAY,
    AnyEvent,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointFailed,
    CheckpointHeld,
    CheckpointRequested,
    CheckpointRestored,
    CheckpointWritten,
    Event,
    JobFinished,
    JobStopAsked,
    JobSubmitted,
    Range,
    StepsCommitted,
    Terms,
    WorkerLeaving,
    WorkerPulse,
)
from reknit.core.manifest import Manifest, assign, chunk_file, file_numbers
from reknit.core.service import Told
from reknit.services.checkpoint.assembly import PATIENCE, PATIENCE_AFTER_END, missing_in_words
from reknit.services.checkpoint.decide import Commit, Sweep, decide
from reknit.services.checkpoint.view import ALL_LEAVE, JOB_STOPS, Flight, View
from support.desk import Desk
from support.history import member, registered, world

TERMS = Terms(slots=4, micro_batch=5, samples=1000, epochs=2, seed=9)  # 50 steps an epoch, 100 in all


def steps(first: int, last: int) -> StepsCommitted:
    ranges = (Range(worker="a", first=0, end=4),)
    return StepsCommitted(run="r1", first=first, last=last, generation=1, ranges=ranges, slots=4)


def written(
    checkpoint: str, chunk: int, worker: str, step: int = 20, *, chunks: int = 4, writers: str = "abc", chain: int = 5
) -> CheckpointWritten:
    return CheckpointWritten(
        checkpoint=checkpoint,
        step=step,
        worker=worker,
        file=chunk_file(chunk, worker),
        chunk=chunk,
        chunks=chunks,
        bytes=10,
        hash="00",
        generation=1,
        chain=chain,
        writers=tuple(writers),
    )


class Service(Desk[View]):
    """The reducer at work for job `j`, run `r1`, workers a, b, c."""

    def requests(self) -> list[CheckpointRequested]:
        return self.events(CheckpointRequested)

    def failures(self) -> list[CheckpointFailed]:
        return self.events(CheckpointFailed)

    def commits(self) -> list[Manifest]:
        found = [wire.decode(action.draft, Manifest) for action in self.done if isinstance(action, Commit)]
        return [m for i, m in enumerate(found) if m not in found[:i]]

    def write_all(self, checkpoint: str, step: int = 20, writers: str = "abc", *, ledger: bool = True) -> None:
        if ledger and self.state.ledger < step:
            self.publish(steps(self.state.ledger, step - 1))
        for worker, part in assign(file_numbers(4), writers).items():
            for chunk in part:
                self.publish(written(checkpoint, chunk, worker, step, writers=writers))

    def commit(self, checkpoint: str, step: int = 20) -> None:
        self.write_all(checkpoint, step)
        self.publish(CheckpointCommitted(checkpoint=checkpoint, step=step, path="", bytes=1, seconds=0.0))


def service(workers: str = "abc", terms: Terms = TERMS, **spec: Any) -> Service:
    spec = {"checkpoint_dir": "/ck", "checkpoint_every_steps": 20, **spec}
    it = Service(decide, View("j"))
    it.publish(JobSubmitted(run="r1", script="s.py", **spec))
    it.publish(*(registered(worker, terms) for worker in workers))
    it.publish(world(1, *(member(worker) for worker in workers)))
    return it


# ----------------------------------------------------------------------------------------------------- when to ask


def test_asked_half_an_interval_ahead_for_exactly_the_multiple() -> None:
    it = service()
    it.publish(steps(0, 8))
    assert it.requests() == []
    it.publish(steps(9, 9))
    assert [(r.checkpoint, r.at_step, r.reason) for r in it.requests()] == [("r1-1", 20, "every 20 steps")]
    it.publish(steps(10, 40))
    it.tick(1)
    assert len(it.requests()) == 1, "one in flight at a time"
    it.commit("r1-1", 41)
    it.publish(steps(41, 48))
    assert len(it.requests()) == 1
    it.publish(steps(49, 49))
    assert [r.at_step for r in it.requests()] == [20, 60], "back on the grid"


def test_late_it_is_asked_for_at_once() -> None:
    it = service()
    it.publish(steps(0, 32))
    assert [r.at_step for r in it.requests()] == [33]
    it.commit("r1-1", 34)
    it.publish(steps(34, 48))
    assert len(it.requests()) == 1, "40 would be too soon after 34"
    it.publish(steps(49, 49))
    assert [r.at_step for r in it.requests()] == [33, 60]


def test_heartbeats_tell_sooner_than_the_log() -> None:
    it = service()
    pulse = WorkerPulse(worker="a", incarnation=1, generation=1, step=10, committed=10)
    it.pulse(msgspec.structs.replace(pulse, generation=7))
    it.tick(0.25)
    assert it.requests() == []
    it.pulse(pulse)
    it.tick(0.25)
    assert [r.at_step for r in it.requests()] == [20]


def test_every_single_step() -> None:
    it = service(checkpoint_every_steps=1)
    it.publish(steps(0, 0))
    assert [r.at_step for r in it.requests()] == [1]
    it.commit("r1-1", 1)
    assert [r.at_step for r in it.requests()] == [1, 2]


def test_by_time_only_when_something_was_committed_since() -> None:
    it = service(checkpoint_every_steps=0, checkpoint_every_seconds=5.0)
    it.tick(6)
    assert it.requests() == []
    it.publish(steps(0, 3))
    assert [(r.at_step, r.reason) for r in it.requests()] == [(4, "every 5 s")]
    it.commit("r1-1", 5)
    it.tick(6)
    assert len(it.requests()) == 1
    it.publish(steps(5, 7))
    it.tick(0.25)
    assert len(it.requests()) == 2


@pytest.mark.parametrize(
    "spec", [{"checkpoint_dir": ""}, {"checkpoint_every_steps": 0, "checkpoint_every_seconds": 0.0}]
)
def test_nothing_is_asked_for_without_a_place_or_an_interval(spec: dict[str, Any]) -> None:
    it = service(**spec)
    it.publish(steps(0, 90))
    it.tick(10)
    assert it.requests() == []


def test_nothing_is_asked_for_after_the_last_step_or_while_paused() -> None:
    it = service()
    it.publish(steps(0, 80))
    it.commit("r1-1", 82)
    it.publish(steps(82, 95))
    it.tick(5)
    assert len(it.requests()) == 1, "step 100 is the end"
    it = service()
    it.publish(world(2, status="paused"))
    it.publish(steps(0, 30))
    assert it.requests() == []
    it.publish(world(3, member("a")))
    assert len(it.requests()) == 1


def test_a_failing_disk_is_tried_once_an_interval() -> None:
    it = service()
    it.publish(steps(0, 19))
    for step in range(20, 61):
        it.publish(steps(step, step))
        if it.state.flight is not None and it.state.flight.at_step <= step:
            it.publish(CheckpointFailed(checkpoint=it.state.flight.checkpoint, reason="full", worker="b"))
    assert [r.at_step for r in it.requests()] == [20, 40, 60]
    assert it.state.given_up == ("r1-1", "r1-2", "r1-3")


def test_a_lost_publication_is_asked_for_again() -> None:
    it = service()
    it.lose = True
    it.publish(steps(0, 12))
    it.tick(1)
    assert it.requests() == []
    it.lose = False
    it.tick(0.25)
    assert [r.checkpoint for r in it.requests()] == ["r1-1"]


# ------------------------------------------------------------------------------------------------------- the stop


def test_a_polite_stop_takes_one_last_checkpoint() -> None:
    it = service(checkpoint_every_steps=0)
    it.publish(steps(0, 8), JobStopAsked())
    assert [(r.at_step, r.reason) for r in it.requests()] == [(9, JOB_STOPS)]
    it.commit("r1-1", 10)
    it.publish(steps(10, 12))
    it.tick(3)
    assert len(it.requests()) == 1


def test_a_stop_at_once_and_a_stop_without_new_steps_take_none() -> None:
    it = service()
    it.publish(steps(0, 8), JobStopAsked(at_once=True))
    assert it.requests() == []
    it = service()
    it.publish(JobStopAsked())
    assert it.requests() == []
    it = service()
    it.publish(steps(0, 19))
    it.commit("r1-1", 20)
    it.publish(JobStopAsked())
    assert len([r for r in it.requests() if r.reason == JOB_STOPS]) == 0


def test_a_request_for_a_later_step_makes_way_for_the_last_one() -> None:
    it = service()
    it.publish(steps(0, 10), JobStopAsked())
    assert [r.at_step for r in it.requests()] == [20, 11]
    assert "stops before step 20" in it.failures()[0].reason


def test_the_last_one_comes_after_the_one_that_is_being_written() -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", 0, "a"), steps(20, 22), JobStopAsked())
    assert len(it.requests()) == 1
    it.commit("r1-1", 20)
    assert [(r.checkpoint, r.reason) for r in it.requests()][1:] == [("r1-2", JOB_STOPS)]


def leaving(worker: str, incarnation: int = 1) -> WorkerLeaving:
    return WorkerLeaving(worker=worker, incarnation=incarnation, reason="drained")


def test_what_nobody_would_have_any_more_is_saved_before_the_last_one_leaves() -> None:
    it = service(checkpoint_every_steps=0)
    it.publish(steps(0, 8), leaving("a"), leaving("b"))
    assert it.requests() == []
    it.publish(leaving("c", 7))
    assert it.requests() == [], "another life of that name"
    it.publish(leaving("c"))
    assert [(r.at_step, r.reason) for r in it.requests()] == [(9, ALL_LEAVE)]
    it.commit("r1-1", 10)
    it.publish(steps(10, 11), world(2, status="paused", removed=("a", "b", "c")))
    it.tick(3)
    assert len(it.requests()) == 1
    it.publish(JobStopAsked())
    it.tick(3)
    assert len(it.requests()) == 1, "nobody is there who could write one"


def test_others_that_come_after_and_leave_too_are_saved_again() -> None:
    it = service("a", checkpoint_every_steps=0)
    it.publish(steps(0, 8), leaving("a"))
    it.commit("r1-1", 9)
    it.publish(world(2, status="paused", removed=("a",)), world(3, member("a", incarnation=2)))
    it.publish(CheckpointRestored(run="r1", checkpoint="r1-1", step=9, worker="a", generation=3), steps(9, 12))
    assert len(it.requests()) == 1
    it.publish(leaving("a", 2))
    assert [(r.checkpoint, r.at_step, r.reason) for r in it.requests()][1:] == [("r1-2", 13, ALL_LEAVE)]


def test_a_request_for_a_later_step_makes_way_when_all_leave() -> None:
    it = service()
    it.publish(steps(0, 10), *(leaving(worker) for worker in "abc"))
    assert [(r.at_step, r.reason) for r in it.requests()] == [(20, "every 20 steps"), (11, ALL_LEAVE)]
    assert it.failures()[0].reason.startswith(MAKES_WAY)


# -------------------------------------------------------------------------------------------------------- assembly


def test_the_manifest_is_asked_for_when_the_last_file_is_there_and_says_all() -> None:
    it = service()
    it.publish(steps(0, 19))
    for chunk, worker in [(3, "c"), (2, "b"), (-1, "a"), (1, "a")]:
        it.publish(written("r1-1", chunk, worker, 60))
        assert it.commits() == []
    it.publish(written("r1-1", 0, "a", 60), steps(20, 59))
    (manifest,) = it.commits()
    assert [c.file for c in manifest.chunks] == [
        "chunk-00000-a.safetensors",
        "chunk-00001-a.safetensors",
        "chunk-00002-b.safetensors",
        "chunk-00003-c.safetensors",
    ]
    assert manifest.index.file == "index-a.msgpack"
    assert (manifest.step, manifest.epoch, manifest.seed, manifest.terms) == (60, 1, 9, TERMS)
    assert (manifest.job, manifest.run, manifest.chain, manifest.generation, manifest.bytes) == ("j", "r1", 5, 1, 50)
    before = len(it.done)
    it.tick(0.5)
    assert len(it.done) > before, "asked again until it is announced"


def test_parents_make_a_line() -> None:
    it = service()
    it.publish(steps(0, 19))
    it.commit("r1-1", 20)
    it.publish(steps(20, 39))
    it.write_all("r1-2", 40)
    assert [m.parent for m in it.commits()] == ["", "r1-1"]
    it = service()
    it.publish(CheckpointRestored(run="r1", checkpoint="r0-7", step=10, worker="a", generation=1), steps(10, 19))
    it.write_all("r1-1", 20)
    assert it.commits()[0].parent == "r0-7"


def test_the_first_of_two_copies_of_a_chunk_counts() -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", 2, "b"), written("r1-1", 2, "c"))
    flight = it.state.flight
    assert flight is not None
    assert flight.files[2].worker == "b"


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (written("r1-1", 1, "b", 21), "b holds step 21"),
        (written("r1-1", 1, "b", chunks=5), "5 chunks"),
        (written("r1-1", 1, "b", chain=6), "chain 0000000000000006"),
        (written("r1-1", 4, "b"), "b wrote chunk 4 of 4"),
    ],
)
def test_files_that_contradict_each_other_make_no_checkpoint(odd: CheckpointWritten, text: str) -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", 0, "a"), odd)
    assert [text in f.reason for f in it.failures()] == [True]
    assert it.state.flight is None
    it.write_all("r1-1")
    assert it.commits() == []


def test_a_dead_writers_files_go_to_the_others() -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", -1, "a"), written("r1-1", 0, "a"))
    it.publish(world(2, member("a"), member("c"), removed=("b",)))
    again = it.requests()[-1]
    assert (again.checkpoint, again.at_step, again.reassigned) == ("r1-1", 20, {"a": (2,)})
    assert again.reason == "b is gone"
    it.tick(1)
    assert len(it.requests()) == 2
    for chunk, worker in [(1, "a"), (2, "a"), (3, "c")]:
        it.publish(written("r1-1", chunk, worker))
    assert [c.worker for c in it.commits()[0].chunks] == ["a", "a", "a", "c"]


@pytest.mark.parametrize("told_first", [True, False])
def test_one_that_had_all_to_write_and_dies_is_replaced_by_those_that_hold_the_copy(told_first: bool) -> None:
    it = service()
    it.publish(steps(0, 21))
    held = [
        CheckpointHeld(checkpoint="r1-1", step=20, worker=w, chunks=1, generation=1, chain=7, writers=("a", "b", "c"))
        for w in "bc"
    ]
    death = world(2, member("b"), member("c"), removed=("a",))
    for event in (held[0], death, held[1]) if told_first else (death, *held):
        it.publish(event)
    assert it.requests()[-1].reassigned == {"b": (-1, 0)}


def test_who_dies_before_the_first_file_is_noticed_with_it() -> None:
    it = service()
    it.publish(steps(0, 19), world(2, member("a"), member("b"), removed=("c",)))
    assert len(it.requests()) == 1
    it.publish(written("r1-1", 0, "a"))
    assert it.requests()[-1].reassigned == {"a": (3,)}


def test_a_worker_that_came_back_has_no_copy() -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", 0, "a"))
    it.publish(world(2, member("a"), member("b", 2), member("c")))
    assert it.requests()[-1].reassigned == {"a": (2,)}


def test_who_takes_over_may_die_too() -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", 0, "a"))
    it.publish(world(2, member("a"), member("c"), removed=("b",)))
    it.publish(world(3, member("c"), removed=("a",)))
    assert it.requests()[-1].reassigned == {"c": (-1, 1, 2)}
    it.publish(world(4, status="paused", removed=("c",)))
    assert [f.checkpoint for f in it.failures()] == ["r1-1"]
    assert "nobody who holds the copy is left" in it.failures()[0].reason
    assert "the index and chunks 1, 2, 3 of c" in it.failures()[0].reason


def test_deaths_after_the_last_file_do_not_matter() -> None:
    it = service()
    it.publish(steps(0, 19))
    it.write_all("r1-1")
    it.publish(world(2, status="paused", removed=("a", "b", "c")))
    it.tick(PATIENCE * 2, every=10)
    assert it.failures() == []
    assert len(it.commits()) == 1


def test_all_lost_before_the_copy_was_taken() -> None:
    it = service()
    it.publish(steps(0, 19))
    it.publish(world(2, status="paused"), world(3, member("d")))
    it.publish(CheckpointRestored(run="r1", checkpoint="", step=0, worker="d", generation=3))
    assert "goes on from step 0" in it.failures()[0].reason
    assert it.state.step == 0


# -------------------------------------------------------------------------------------------------------- patience


def test_without_progress_it_is_given_up_and_says_what_is_missing() -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", 0, "a"))
    it.tick(PATIENCE - 1, every=1)
    it.publish(written("r1-1", 1, "a"))
    it.tick(PATIENCE - 1, every=1)
    assert it.failures() == []
    it.tick(2, every=1)
    assert it.failures()[0].reason == ("nothing came for 60 s; missing: the index of a; chunk 2 of b; chunk 3 of c")


@pytest.mark.parametrize("told", [(), ("b",), ("b", "c")])
def test_a_checkpoint_that_all_are_silent_about_does_not_stop_the_next_ones(told: tuple[str, ...]) -> None:
    it = service()
    it.publish(steps(0, 19), steps(20, 21))
    for worker in told:
        held = CheckpointHeld(
            checkpoint="r1-1", step=20, worker=worker, chunks=1, generation=1, writers=("a", "b", "c")
        )
        it.publish(held)
    it.tick(PATIENCE + 5, every=5)
    assert [f.checkpoint for f in it.failures()] == ["r1-1"]
    it.publish(steps(22, 40))
    assert [r.checkpoint for r in it.requests()] == ["r1-1", "r1-2"]
    it.tick(PATIENCE * 10, every=5)
    it.publish(steps(41, 60))
    it.tick(PATIENCE + 5, every=5)
    it.publish(steps(61, 80))
    assert [r.checkpoint for r in it.requests()] == ["r1-1", "r1-2", "r1-3"]


def test_slow_steps_are_no_failure() -> None:
    it = service()
    it.publish(steps(0, 10))
    it.tick(PATIENCE * 10, every=5)
    it.publish(steps(11, 19))
    it.tick(PATIENCE * 10, every=5)
    it.publish(steps(20, 20))
    it.tick(PATIENCE * 10, every=5)
    assert it.failures() == []
    it.publish(steps(21, 21))
    it.tick(PATIENCE + 5, every=5)
    assert "no worker has written anything" in it.failures()[0].reason


def test_it_counts_only_once_the_ledger_has_all_its_steps() -> None:
    it = service()
    it.publish(steps(0, 15))
    it.write_all("r1-1", 20, ledger=False)
    it.tick(1)
    assert it.commits() == []
    it.publish(steps(16, 19))
    assert [m.step for m in it.commits()] == [20]


def test_a_ledger_that_never_comes_gives_it_up() -> None:
    it = service()
    it.publish(steps(0, 15))
    it.write_all("r1-1", 20, ledger=False)
    it.tick(PATIENCE + 2, every=1)
    assert "the ledger ends at step 16 and the state is that of 20" in it.failures()[0].reason


def test_a_paused_job_is_no_failure() -> None:
    it = service()
    it.publish(steps(0, 25), world(2, status="paused", removed=("a",)))
    it.tick(PATIENCE * 10, every=5)
    assert it.failures() == []


def test_after_the_end_it_waits_only_a_little() -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", 0, "a"), JobFinished(run="r1", outcome="completed"))
    it.tick(PATIENCE_AFTER_END + 1, every=1)
    assert len(it.failures()) == 1
    it.publish(steps(20, 90))
    it.tick(5)
    assert len(it.requests()) == 1


def test_a_failure_said_by_a_worker_ends_it() -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", 0, "a"))
    it.publish(CheckpointFailed(checkpoint="r1-1", reason="b cannot write: No space left on device", worker="b"))
    assert it.state.flight is None
    sweeps = [action for action in it.done if isinstance(action, Sweep)]
    assert sweeps[-1].given_up == ("r1-1",)
    it.publish(written("r1-1", 1, "a"))
    assert it.state.flight is None


# ------------------------------------------------------------------------------------------------------------ rest


def test_a_request_by_somebody_else_is_taken_up_or_refused() -> None:
    it = service(checkpoint_every_steps=0)
    it.publish(steps(0, 3), CheckpointRequested(checkpoint="mine", at_step=0, reason="asked"))
    it.publish(CheckpointRequested(checkpoint="other", at_step=0, reason="asked"))
    assert [(f.checkpoint, f.reason) for f in it.failures()] == [("other", "another checkpoint is being written")]
    it.write_all("mine", 5)
    assert [m.checkpoint for m in it.commits()] == ["mine"]


def test_retention_follows_each_commit_and_each_start() -> None:
    it = service(checkpoint_keep=2)
    assert [a.after for a in it.done if isinstance(a, Sweep)] == ["start"]
    it.publish(steps(0, 19))
    it.commit("r1-1", 20)
    it.publish(CheckpointDeleted(checkpoint="r1-1"))
    it.publish(steps(20, 39))
    it.commit("r1-2", 40)
    sweeps = [a for a in it.done if isinstance(a, Sweep)]
    assert [(s.after, s.keep, s.kept) for s in sweeps[1:]] == [("r1-1", 2, ("r1-1",)), ("r1-2", 2, ("r1-2",))]
    assert len({hash(s) for s in sweeps}) == 3


def test_a_second_run_begins_afresh_but_cleans_up_after_the_first() -> None:
    it = service()
    it.publish(steps(0, 19), written("r1-1", 0, "a"), JobFinished(run="r1", outcome="failed"))
    it.publish(JobSubmitted(run="r2", script="s", checkpoint_dir="/ck", checkpoint_every_steps=20))
    assert it.state.flight is None
    assert it.state.given_up == ("r1-1",)
    assert (it.state.step, it.state.asked) == (0, 0)
    it.publish(JobSubmitted(run="r3", script="s"))
    assert it.state.spec is not None
    assert it.state.spec.run == "r2", "only after the run before is finished"


def test_missing_files_in_words_are_short() -> None:
    flight = Flight("c", step=1, chunks=9, owners=dict.fromkeys(range(-1, 9), "w"))
    assert missing_in_words(flight) == "missing: the index and chunks 0, 1, 2, 3 and 5 more of w"


def without_clock(view: View) -> View:
    flight = view.flight and dataclasses.replace(view.flight, began_at=0.0, moved_at=0.0)
    return dataclasses.replace(view, marked_at=0.0, live=False, flight=flight)


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 12)),
        st.tuples(st.just("write"), st.integers(-1, 3)),
        st.tuples(st.just("world"), st.sampled_from(["abc", "ab", "ac", "bc", "a", "", "abcd"])),
        st.tuples(st.just("tick"), st.integers(1, 100)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("fail"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 30)),
        st.tuples(st.just("stop"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(MOVES)
def test_whatever_happens_replay_gives_the_same_and_checkpoints_do_not_overlap(moves: list[tuple[str, Any]]) -> None:
    it = service()
    generation = 1
    for move, value in moves:
        flight = it.state.flight
        if move == "steps":
            it.publish(steps(it.state.step, it.state.step + value - 1))
        elif move == "write" and flight is not None:
            owner = flight.owners.get(value, "a")
            it.publish(written(flight.checkpoint, value, owner, flight.step if flight.step >= 0 else it.state.step))
        elif move == "world":
            generation += 1
            it.publish(world(generation, *(member(w) for w in value), status="running" if value else "paused"))
        elif move == "tick":
            it.tick(value, every=5)
        elif move == "commit" and flight is not None and any(m.checkpoint == flight.checkpoint for m in it.commits()):
            it.publish(
                CheckpointCommitted(checkpoint=flight.checkpoint, step=flight.step, path="", bytes=0, seconds=0.0)
            )
        elif move == "fail" and flight is not None:
            it.publish(CheckpointFailed(checkpoint=flight.checkpoint, reason="x", worker="a"))
        elif move == "restart":
            it.restart(View("j"))
        elif move == "restore":
            it.publish(CheckpointRestored(run="r1", checkpoint="c", step=value, worker="a", generation=generation))
        elif move == "stop":
            it.publish(JobStopAsked())
    fresh = it.replayed(View("j"))
    assert without_clock(fresh) == without_clock(it.state)
    check_log(it.log)


def check_log(log: list[tuple[AnyEvent, str]]) -> None:
    open_now = ""
    ended: set[str] = set()
    for event, _ in log:
        match event:
            case CheckpointRequested() if not event.reassigned:
                assert open_now == "", "two at a time"
                assert event.checkpoint not in ended
                open_now = event.checkpoint
            case CheckpointRequested():
                assert event.checkpoint == open_now
            case CheckpointCommitted() | CheckpointFailed():
                assert event.checkpoint == open_now
                ended.add(open_now)
                open_now = ""


def test_a_replay_asks_for_nothing_and_the_first_live_input_asks_for_all() -> None:
    it = service()
    it.lose = True
    it.publish(steps(0, 19))
    state = View("j")
    for seq, (event, id_) in enumerate(it.log, 1):
        assert isinstance(event, Event)
        decision = decide(state, Told("j", event, it.now, seq, live=False, id=id_))
        assert not decision.out
        assert not decision.do
        state = decision.state
    it.state, it.lose = state, False
    it.tick(0.25)
    assert [r.checkpoint for r in it.requests()] == ["r1-1"]
