"""The ledger accepts every honest history and refuses each planted fault, naming the records."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.core.errors import UsageError
from reknit.core.events import (
    AnyEvent,
    CheckpointRestored,
    JobFinished,
    JobSubmitted,
    Range,
    StepsCommitted,
    Terms,
)
from reknit.core.ledger import verify
from reknit.core.order import Course
from reknit.core.plan import split
from support.history import History, chain_of, member, random_history, registered, world

TERMS = Terms(slots=4, micro_batch=3, samples=50, epochs=2, seed=7)  # 5 steps an epoch, the last of 2 samples


def calm(finish: bool = True, steps: int = 10) -> list[AnyEvent]:
    """A run of two workers, a record a step; sequence of step s in the log is s + 5."""
    events: list[AnyEvent] = [JobSubmitted(run="r1", script="t.py")]
    events += [registered("a", TERMS), registered("b", TERMS), world(1, member("a"), member("b"))]
    for step in range(steps):
        events.append(
            StepsCommitted(
                run="r1",
                first=step,
                last=step,
                generation=1,
                ranges=split(4, ["a", "b"]),
                slots=4,
                chains=(chain_of(step),),
            )
        )
    return [*events, JobFinished(run="r1", outcome="completed", step=steps)] if finish else events


def replaced(events: list[AnyEvent], step: int, **change: object) -> list[AnyEvent]:
    at = step + 4
    record = events[at]
    assert isinstance(record, StepsCommitted)
    assert record.first == step
    return [*events[:at], msgspec.structs.replace(record, **change), *events[at + 1 :]]


def test_a_calm_run_is_proved() -> None:
    proof = verify(calm())
    assert proof.ok, proof.text()
    assert (proof.steps, proof.samples, proof.generations, proof.rollbacks) == (10, 100, 1, 0)
    assert [(e.steps, e.samples, e.once) for e in proof.epochs] == [(5, 50, True), (5, 50, True)]
    assert "every sample in exactly one committed step" in proof.text()


def test_the_dict_is_json_and_holds_what_the_command_line_shows() -> None:
    plain = json.loads(json.dumps(verify(calm()).to_dict()))
    assert plain["ok"] is True
    assert {"run", "epochs", "steps", "samples", "rollbacks", "generations", "computed_again", "problems"} <= set(plain)


def test_a_run_that_goes_on_is_proved_as_far_as_it_is() -> None:
    proof = verify(calm(finish=False, steps=7))
    assert proof.ok
    assert [e.once for e in proof.epochs] == [True, False]
    assert proof.missing == "steps 7..9 are not committed yet"


def test_an_empty_log_holds_no_run_and_another_run_is_an_error() -> None:
    assert verify([]).text() == "the log holds no run"
    with pytest.raises(UsageError, match="no run 'other'"):
        verify(calm(), run="other")


@pytest.mark.parametrize("seed", range(150))
def test_every_honest_history_is_accepted(seed: int) -> None:
    history = random_history(seed)
    proof = verify(history.events)
    assert proof.ok, f"seed {seed}\n{proof.text()}"
    assert proof.steps == history.course.steps
    assert proof.samples == history.terms.samples * history.terms.epochs
    assert all(e.once for e in proof.epochs)


@given(seed=st.integers(0, 2**32), cut=st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_every_beginning_of_an_honest_history_has_no_contradiction(seed: int, cut: float) -> None:
    events = random_history(seed).events
    proof = verify(events[: int(len(events) * cut)])
    # a late record may still be under way: then its step is told as missing, and nothing else is
    assert all(problem.startswith("no record of step") for problem in proof.problems), proof.text()


@given(seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=150, deadline=None)
def test_each_planted_fault_is_found(seed: int, data: st.DataObject) -> None:
    events = random_history(seed).events
    honest = verify(events)
    on_line = [i for i, e in enumerate(events) if isinstance(e, StepsCommitted) and _alone(events, i)]
    if not on_line:
        return
    at = data.draw(st.sampled_from(on_line))
    name = data.draw(st.sampled_from(sorted(FAULTS)))
    planted = FAULTS[name](events, at)
    if planted is not None:
        proof = verify(planted)
        assert honest.ok
        assert not proof.ok, f"{name} at {at}"


def _alone(events: list[AnyEvent], at: int) -> bool:
    """True if a record is the only one of its steps, and no restore follows: it stands on the final line by itself."""
    record = events[at]
    assert isinstance(record, StepsCommitted)
    others = [e for i, e in enumerate(events) if isinstance(e, StepsCommitted) and i != at]
    told = any(o.first <= record.last and record.first <= o.last for o in others)
    return not told and not any(isinstance(e, CheckpointRestored) for e in events)


def _with(events: list[AnyEvent], at: int, *records: AnyEvent) -> list[AnyEvent]:
    return [*events[:at], *records, *events[at + 1 :]]


def _missing(events: list[AnyEvent], at: int) -> list[AnyEvent]:
    return _with(events, at)


def _hole(events: list[AnyEvent], at: int) -> list[AnyEvent]:
    record = events[at]
    ranges = [r for r in record.ranges if r.end > r.first]
    ranges[-1] = msgspec.structs.replace(ranges[-1], end=ranges[-1].end - 1)
    return _with(events, at, msgspec.structs.replace(record, ranges=tuple(ranges)))


def _doubled(events: list[AnyEvent], at: int) -> list[AnyEvent]:
    record = events[at]
    again = Range(worker="zz", first=record.slots - 1, end=record.slots)
    return _with(events, at, msgspec.structs.replace(record, ranges=(*record.ranges, again)))


def _other_result(events: list[AnyEvent], at: int) -> list[AnyEvent]:
    record = events[at]
    other = msgspec.structs.replace(record, chains=tuple(c ^ 1 for c in record.chains))
    return _with(events, at, record, other)


def _other_owner(events: list[AnyEvent], at: int) -> list[AnyEvent]:
    record = events[at]
    other = msgspec.structs.replace(record, ranges=(Range(worker="zz", first=0, end=record.slots),))
    return _with(events, at, record, other)


def _stale(events: list[AnyEvent], at: int) -> list[AnyEvent] | None:
    record = events[at]
    before = [e.generation for e in events[:at] if isinstance(e, StepsCommitted)]
    if not before or record.first == 0:
        return None
    return _with(events, at, msgspec.structs.replace(record, generation=0))


def _more_slots(events: list[AnyEvent], at: int) -> list[AnyEvent]:
    record = events[at]
    ranges = (*record.ranges, Range(worker="zz", first=record.slots, end=record.slots + 1))
    return _with(events, at, msgspec.structs.replace(record, ranges=ranges, slots=record.slots + 1))


FAULTS: dict[str, Callable[[list[AnyEvent], int], list[AnyEvent] | None]] = {
    "missing step": _missing,
    "slot in no range": _hole,
    "sample twice": _doubled,
    "overlap with another result": _other_result,
    "overlap with another owner": _other_owner,
    "stale generation": _stale,
    "slots that do not exist": _more_slots,
}


def test_a_missing_step_is_named() -> None:
    events = calm()
    proof = verify(events[:8] + events[10:])
    assert proof.problems == ("no record of steps 4..5, although step 6 is committed",)


def test_a_completed_run_without_its_end_is_not_proved() -> None:
    events = calm()
    proof = verify([*events[:-2], events[-1]])
    assert proof.problems == ("the run completed, but there is no record of steps 9..9",)


def test_a_script_that_leaves_the_loop_early_is_told_as_that() -> None:
    proof = verify([*calm(finish=False, steps=6), JobFinished(run="r1", outcome="completed", step=6)])
    assert proof.ok
    assert proof.missing == "steps 6..9 were never run: the script left the loop early"


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ((("a", 0, 2), ("b", 1, 4)), "slots 1..1 are in two ranges, of a and b"),
        ((("a", 0, 1), ("b", 2, 4)), "slots 1..1 are in no range"),
        ((("a", 0, 2),), "slots 2..3 are in no range"),
        ((("a", 0, 5),), "slots 4..4 do not exist, a step has 4"),
        ((("b", 2, 4), ("a", 0, 2)), "slots 0..1 are in no range"),
        ((), "slots 0..3 are in no range"),
    ],
)
def test_wrong_coverage_is_told_in_words(ranges: tuple[tuple[str, int, int], ...], text: str) -> None:
    wrong = tuple(Range(worker=w, first=a, end=b) for w, a, b in ranges)
    proof = verify(replaced(calm(), 3, ranges=wrong))
    assert proof.problems[0] == f"record 8 (step 3, generation 1): {text}"
    assert "no record of step 3, although step 4 is committed" in proof.problems


def test_a_contradiction_names_both_records() -> None:
    events = calm()
    other = msgspec.structs.replace(events[7], chains=(99,))
    proof = verify([*events[:-1], other, events[-1]])
    assert len(proof.problems) == 1
    assert "step 3 is told twice and differently (the same owners but other results)" in proof.problems[0]
    assert "record 8 (generation 1, a 0..1, b 2..3" in proof.problems[0]
    assert "record 15 (generation 1" in proof.problems[0]


def test_equal_records_are_one() -> None:
    events = calm()
    proof = verify([*events[:9], events[8], events[7], *events[9:]])
    assert proof.ok
    assert proof.duplicates == 2


def test_empty_ranges_of_spares_and_split_ranges_of_one_worker_are_the_same_owners() -> None:
    events = calm()
    record = events[6]
    other = (
        Range(worker="a", first=0, end=1),
        Range(worker="a", first=1, end=2),
        Range(worker="s", first=2, end=2),
        Range(worker="b", first=2, end=4),
    )
    assert verify([*events[:7], msgspec.structs.replace(record, ranges=other), *events[7:]]).ok


def test_a_result_lost_with_all_who_had_it_is_computed_again() -> None:
    events = calm()
    again = msgspec.structs.replace(
        events[9], generation=2, ranges=(Range(worker="b", first=0, end=4),), computed_again=4
    )
    rest = [msgspec.structs.replace(e, generation=2) if isinstance(e, StepsCommitted) else e for e in events[10:]]
    proof = verify([*events[:10], again, *rest])
    assert proof.ok, proof.text()
    assert proof.computed_again == 4
    # the same in one generation is two truths at once
    assert not verify([*events[:10], msgspec.structs.replace(again, generation=1), *events[10:]]).ok


def test_a_restore_gives_up_what_came_after_the_checkpoint() -> None:
    events = calm(finish=False, steps=8)
    restored = CheckpointRestored(run="r1", checkpoint="c5", step=5, worker="c", generation=2, chain=chain_of(4))
    again = [
        StepsCommitted(
            run="r1",
            first=s,
            last=s,
            generation=2,
            ranges=(Range(worker="c", first=0, end=4),),
            slots=4,
            chains=(s + 1000,),
        )
        for s in range(5, 10)
    ]
    zombie = msgspec.structs.replace(events[-1], first=8, last=8, chains=(chain_of(8),))
    end = JobFinished(run="r1", outcome="completed", step=10)
    for log in ([*events, restored, *again, end], [*events, restored, again[0], zombie, *again[1:], end]):
        proof = verify(log)
        assert proof.ok, proof.text()
        assert (proof.rollbacks, proof.lost_steps, proof.steps) == (1, 3, 10)
    # the new line's first record is heard before the restore
    proof = verify([*events, again[0], restored, *again[1:], end])
    assert proof.ok, proof.text()


def test_a_restore_with_another_chain_than_the_ledger_is_a_problem() -> None:
    restored = CheckpointRestored(run="r1", checkpoint="c5", step=5, worker="c", generation=2, chain=1)
    proof = verify([*calm(finish=False, steps=8), restored])
    assert "takes up checkpoint c5 at step 5" in proof.problems[0]


@pytest.mark.parametrize("more_epochs", [0, 3])
def test_a_later_run_that_resumes_goes_on_with_the_line_of_the_earlier_run(more_epochs: int) -> None:
    events = calm(finish=False, steps=8)
    terms = msgspec.structs.replace(TERMS, epochs=TERMS.epochs + more_epochs)
    events.append(JobFinished(run="r1", outcome="stopped", step=8))
    events += [JobSubmitted(run="r2", script="t.py"), registered("c", terms, run="r2")]
    events.append(world(2, member("c"), run="r2"))
    events.append(CheckpointRestored(run="r2", checkpoint="c5", step=5, worker="c", generation=2, chain=chain_of(4)))
    for s in range(5, 10):
        ranges = (Range(worker="c", first=0, end=4),)
        events.append(
            StepsCommitted(run="r2", first=s, last=s, generation=2, ranges=ranges, slots=4, chains=(chain_of(s),))
        )
    if not more_epochs:
        events.append(JobFinished(run="r2", outcome="completed", step=10))
    proof = verify(events)
    assert proof.ok, proof.text()
    assert (proof.run, proof.steps) == ("r2", 10)
    assert verify(events, run="r1").steps == 8
    # without the earlier run's records the first steps cannot be proved
    assert verify([e for e in events if getattr(e, "run", "r2") == "r2"]).problems == (
        "no record of steps 0..4, although step 5 is committed",
    )


def test_terms_of_a_refused_worker_do_not_count() -> None:
    events = calm()
    wrong = registered("x", msgspec.structs.replace(TERMS, samples=51, slots=3))
    assert verify([events[0], wrong, *events[1:]]).ok


def test_records_beyond_the_run_and_before_any_terms_are_problems() -> None:
    far = msgspec.structs.replace(calm()[4], first=2**40, last=2**40)
    assert "beyond the run's last step 9" in verify([*calm(), far]).problems[0]
    assert verify([far]).problems == ("record 1 comes before any worker told its terms",)


def test_one_problem_does_not_hide_in_a_thousand() -> None:
    events = [e for e in calm() if not isinstance(e, StepsCommitted)]
    bad = [msgspec.structs.replace(calm()[4], ranges=()) for _ in range(100)]
    proof = verify([*events[:-1], *bad])
    assert len(proof.problems) == 21
    assert proof.problems[-1] == "and 80 more"


def test_a_hundred_thousand_steps_take_a_moment_and_little_memory() -> None:
    terms = Terms(slots=4, micro_batch=1, samples=4000, epochs=100, seed=1)
    course = Course(4000, 1, 4, 100, 1)
    events: list[AnyEvent] = [registered("a", terms)]
    ranges = split(4, ["a", "b"])
    for first in range(0, course.steps, 20):
        chains = tuple(range(first + 1, first + 21))
        events.append(
            StepsCommitted(run="r1", first=first, last=first + 19, generation=1, ranges=ranges, slots=4, chains=chains)
        )
    proof = verify(events)
    assert proof.ok
    assert proof.steps == 100_000
    assert "epochs 0..99: 100 proved, 4000 samples each, once" in proof.text()
    assert {e.how for e in verify(events, most_counted=0).epochs} == {"order"}


def test_history_itself_has_the_cases_it_should() -> None:
    kinds = {"restored": 0, "late": 0, "again": 0}
    for seed in range(40):
        history = random_history(seed)
        proof = verify(history.events)
        kinds["restored"] += proof.rollbacks
        kinds["late"] += proof.duplicates
        kinds["again"] += proof.computed_again
    assert all(kinds.values()), kinds
    assert History(TERMS, ["a"]).course.steps == 10
    assert random.Random(1).random() == random.Random(1).random()
