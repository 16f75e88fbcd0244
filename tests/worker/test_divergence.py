"""Wrong bits in whole rings inside one process: found before the step is committed, named, healed; real sockets."""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from reknit.core.events import JobDoubted, RingBroken, WorkerDiverged
from reknit.worker.ring import pieces
from reknit.worker.ring.reduction import Reduction
from reknit.worker.ring.vote import Diverged
from support.rings import PretendWorker, Rings, wait_until

SLOTS, TOTAL = 6, 8


class Healing:
    """A ring whose links are made anew whenever they break, as membership would."""

    def __init__(self, rings: Rings, names: str, total: int = TOTAL, **roles: str) -> None:
        self.rings, self.names, self.roles = rings, list(names), roles
        for name in names:
            rings.add(PretendWorker(name, slots=SLOTS, total=total))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __getitem__(self, name: str) -> PretendWorker:
        return self.rings.workers[name]

    def begin(self) -> None:
        self.rings.world(self.names, **self.roles)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            if any(b.generation == self.rings.generation for b in self.told(RingBroken)):
                self.rings.world(self.names, **self.roles)

    def told(self, kind: type) -> list[Any]:
        workers = list(self.rings.workers.values())
        return [event for worker in workers for event in list(worker.outlet.events) if isinstance(event, kind)]

    def finish(self) -> list[str]:
        return self.rings.finish(self.names)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def rings() -> Iterator[Rings]:
    r = Rings()
    yield r
    r.close()


@pytest.fixture
def heal(rings: Rings) -> Iterator[Any]:
    made: list[Healing] = []

    def make(names: str, total: int = TOTAL, **roles: str) -> Healing:
        made.append(Healing(rings, names, total, **roles))
        return made[-1]

    yield make
    for one in made:
        if one._thread.ident:
            one.end()


@functools.cache
def calm_run(total: int) -> str:
    r = Rings()
    try:
        r.add(PretendWorker("x", slots=SLOTS, total=total))
        r.world(["x"])
        return r.finish(["x"])[0]
    finally:
        r.close()


@pytest.fixture
def calm() -> str:
    return calm_run(TOTAL)


LONG = 60


def go_slowly(*workers: PretendWorker) -> None:
    """Let these take their time for each slot, so that others can learn meanwhile."""
    for worker in workers:
        worker.hold = lambda _step, _slot: time.sleep(0.002)


def spoil(worker: PretendWorker, when: str, step: int, *, what: str = "weights") -> list[int]:
    """Change one bit of the worker once, at this moment of this step; the list holds the step once it is done."""
    done: list[int] = []

    def meddle(now: str, at: int) -> None:
        if (now, at) != (when, step) or done:
            return
        done.append(at)
        if what == "weights":
            worker.weights = worker.weights.copy()  # torch's memory is its own; here an older array may be shared
            worker.weights.view(np.uint32)[worker.weights.size // 2] ^= 1 << 20
        else:
            worker.shared.results[at].buffer[43] ^= 1

    worker.meddle = meddle
    return done


MOMENTS = ["compute", "put", "verify", "verified", "apply", "applied"]


@pytest.mark.parametrize("victim", "abc")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("step", [0, 3])
def test_a_flipped_bit_in_the_weights_of_one_of_three(heal, calm, moment, victim, step):
    ring = heal("abc")
    done = spoil(ring[victim], moment, step)
    ring.begin()
    assert set(ring.finish()) == {calm}
    assert done == [step]
    (told,) = ring.told(WorkerDiverged)
    # the first digest after the bit: that of the same step, or of the next one if this one's was taken
    found = {step} if moment in ("compute", "put", "verify") else {step + 1}
    if moment == "verified" and step == 0:
        found = {0, 1}  # before anybody has slots, a digest may be taken once more
    assert (told.worker, told.node, told.what, told.by) == (victim, victim, "weights", "majority")
    assert told.step in found
    assert told.observer != victim
    assert told.digest != told.right
    assert any("diverged" in b.error for b in ring.told(RingBroken))


@pytest.mark.parametrize("victim", "abc")
def test_a_bit_that_flips_after_the_last_step_is_found_before_anybody_leaves(heal, calm, victim):
    ring = heal("abc")
    spoil(ring[victim], "applied", TOTAL - 1)
    ring.begin()
    assert set(ring.finish()) == {calm}
    (told,) = ring.told(WorkerDiverged)
    assert (told.worker, told.step) == (victim, TOTAL)


@pytest.mark.parametrize("victim", "abc")
def test_a_result_that_changes_before_it_is_applied_shows_as_other_weights(heal, calm, victim):
    ring = heal("abc")
    spoil(ring[victim], "apply", 3, what="result")
    ring.begin()
    assert set(ring.finish()) == {calm}
    (told,) = ring.told(WorkerDiverged)
    assert (told.worker, told.what, told.step) == (victim, "weights", 4)


@pytest.mark.parametrize("receiver", [1, 2])
def test_a_partial_sum_that_arrives_other_than_it_was_sent_is_not_committed(heal, calm, monkeypatch, receiver):
    """A bit that TCP's checksum let through: else all would get the same wrong result, and none could tell."""
    ring = heal("abc")
    spoilt = []
    right = pieces.fold

    def fold(start: Any, own: Any, piece: Any, out: Any) -> None:
        right(start, own, piece, out)
        me = ring["abc"[receiver - 1]]
        if me.shared.step == 3 and threading.current_thread() is me.engine._thread and not spoilt:
            spoilt.append(3)
            out_after.append(out)

    out_after: list[Any] = []
    send = Reduction._pass

    def spoil_on_the_wire(self: Reduction, kind: Any, number: int, coverage: int, values: Any) -> None:
        if out_after and out_after[-1] is values:
            out_after.clear()
            values[6] ^= 2  # after its digest was taken: as a wire would do it
        send(self, kind, number, coverage, values)

    monkeypatch.setattr(pieces, "fold", fold)
    monkeypatch.setattr(Reduction, "_pass", spoil_on_the_wire)
    ring.begin()
    assert set(ring.finish()) == {calm}
    assert spoilt == [3]
    assert ring.told(WorkerDiverged) == []
    assert any("partial sums of step 3 arrived other" in b.error for b in ring.told(RingBroken))


def test_a_result_that_arrives_other_than_it_was_sent_is_not_committed(heal, calm):
    """A bit that TCP's checksum let through: found by the last active's chain, in the same step."""
    ring = heal("abc")
    a = ring["a"]
    right, spoilt = a.engine._cut, []

    def receive(piece: Any, was: Any) -> memoryview:
        view = was(piece)
        if a.shared.step == 3 and not spoilt:
            spoilt.append(a.shared.step)
            view[5] ^= 1
        return view

    was = Reduction._receive
    try:
        Reduction._receive = lambda self, piece: (
            receive(piece, lambda p: was(self, p)) if self.where.place == 0 else was(self, piece)
        )
        ring.begin()
        assert set(ring.finish()) == {calm}
    finally:
        Reduction._receive = was
    assert spoilt == [3]
    assert right
    assert ring.told(WorkerDiverged) == []  # nobody holds wrong bits: it was not taken
    assert any("diverged: the result of step 3 arrived here" in b.error for b in ring.told(RingBroken))


def test_of_two_the_one_that_saw_its_own_weights_change_learns(heal, calm):
    ring = heal("ab")
    spoil(ring["b"], "put", 3)
    ring.begin()
    assert set(ring.finish()) == {calm}
    (told,) = ring.told(WorkerDiverged)
    assert (told.worker, told.by, told.observer) == ("b", "own", "a")


def test_of_two_nobody_goes_on_when_nothing_tells_who_is_right(heal):
    ring = heal("ab")
    spoil(ring["b"], "verified", 3)
    ring.begin()
    wait_until(lambda: ring["a"].error and ring["b"].error, what="both fail")
    for name in "ab":
        assert isinstance(ring[name].error, Diverged)
        assert "different weights in step 4" in str(ring[name].error)
        assert max(ring[name].applied) == 3, "the doubtful step was not committed"


def test_alone_it_stops_rather_than_go_on(heal):
    ring = heal("a")
    spoil(ring["a"], "put", 3)
    ring.begin()
    wait_until(lambda: ring["a"].error, what="it fails")
    assert isinstance(ring["a"].error, Diverged)
    assert max(ring["a"].applied) == 2


@pytest.mark.parametrize("victim", ["a", "b", "s"])
def test_two_workers_and_a_spare_are_three_witnesses(heal, calm, victim):
    ring = heal("abs", s="spare")
    done = spoil(ring[victim], "verified", 3)
    ring.begin()
    assert set(ring.finish()) == {calm}
    assert done == [3]
    (told,) = ring.told(WorkerDiverged)
    assert (told.worker, told.what, told.step) == (victim, "weights", 4)


def test_a_sole_active_is_compared_with_its_spares_before_it_commits(heal, calm):
    ring = heal("ast", s="spare", t="spare")
    spoil(ring["a"], "verified", 3)
    ring.begin()
    assert set(ring.finish()) == {calm}
    (told,) = ring.told(WorkerDiverged)
    assert (told.worker, told.step) == ("a", 4)


def test_a_spare_that_is_wrong_does_not_stop_the_others(heal, calm):
    ring = heal("abs", s="spare")
    spoil(ring["s"], "applied", 3)
    ring.begin()
    assert set(ring.finish()) == {calm}
    assert {w.worker for w in ring.told(WorkerDiverged)} == {"s"}
    for name in "ab":
        assert len(ring[name].computed) == len(set(ring[name].computed)), "a slot was computed twice"


def test_two_wrong_ones_of_five(heal, calm):
    ring = heal("abcde")
    spoil(ring["b"], "compute", 3)
    spoil(ring["d"], "verify", 3)
    ring.begin()
    assert set(ring.finish()) == {calm}
    assert {w.worker for w in ring.told(WorkerDiverged)} == {"b", "d"}


def test_the_same_worker_twice(heal):
    ring = heal("abc", LONG)
    b = ring["b"]
    go_slowly(ring["a"], ring["c"])
    first = spoil(b, "compute", 2)
    once, second = b.meddle, []

    def again(when: str, step: int) -> None:
        once(when, step)
        # as soon as it is back it is spoilt once more
        if first and when == "verified" and step > first[0] + 1 and not second:
            second.append(step)
            b.weights = b.weights.copy()
            b.weights.view(np.uint32)[7] ^= 4

    b.meddle = again
    ring.begin()
    assert set(ring.finish()) == {calm_run(LONG)}
    assert second[0] < LONG
    assert [w.worker for w in ring.told(WorkerDiverged)] == ["b", "b"]


def test_whoever_learned_from_a_wrong_teacher_is_wrong_too(heal):
    """The bit flips just before the teacher's state is copied: then the learner has it as well."""
    ring = heal("abd", LONG)
    workers = [ring[n] for n in "abd"]
    go_slowly(*workers)
    spoilt: list[str] = []

    def spoil_before_copying(teacher: PretendWorker) -> None:
        was = teacher.shared.copies.begin

        def begin(step: int) -> Any:
            if step >= 3 and not spoilt:
                spoilt.append(teacher.name)
                teacher.weights = teacher.weights.copy()
                teacher.weights.view(np.uint32)[9] ^= 1 << 9
            return was(step)

        teacher.shared.copies.begin = begin

    for teacher in workers:
        spoil_before_copying(teacher)
    ring.begin()
    wait_until(lambda: workers[0].shared.step > 3)
    joiner = ring.rings.add(PretendWorker("c", slots=SLOTS, total=LONG, seed=7))
    ring.names = list("abdc")
    ring.rings.world(ring.names)
    assert set(ring.finish()) == {calm_run(LONG)}
    assert joiner.applied
    assert spoilt[0] in {w.worker for w in ring.told(WorkerDiverged)}


def test_a_candidate_that_is_spoilt_before_it_is_let_in_begins_anew(heal):
    ring = heal("ab", LONG)
    go_slowly(ring["a"], ring["b"])
    ring.begin()
    wait_until(lambda: ring["a"].shared.step > 3)
    joiner = PretendWorker("c", slots=SLOTS, total=LONG, seed=7)
    spoilt: list[int] = []

    def meddle(when: str, step: int) -> None:
        if when == "applied" and not spoilt:  # its own doing: nobody sends it wrong bits
            spoilt.append(step)
            joiner.weights = joiner.weights.copy()
            joiner.weights.view(np.uint32)[9] ^= 1 << 9

    joiner.meddle = meddle
    ring.rings.add(joiner)
    shared = joiner.shared
    wait_until(
        lambda: ring.told(WorkerDiverged) and not shared.learning and shared.whole and shared.main_step == shared.step,
        what="it is found and has caught up again",
    )
    ring.names = list("abc")
    ring.rings.world(ring.names, planned=True)
    assert set(ring.finish()) == {calm_run(LONG)}
    (told,) = ring.told(WorkerDiverged)
    assert (told.worker, told.observer, told.step) == ("c", "c", spoilt[0] + 1)
    assert joiner.engine.standing._candidate.begun == 2


def test_a_newcomer_that_differs_from_what_a_sole_worker_has_committed_makes_the_run_go_back(heal):
    """Alone nobody looks at it; whoever learns beside it does, and then nobody knows who is right."""
    ring = heal("a", LONG)
    a = ring["a"]
    go_slowly(a)
    ring.begin()
    wait_until(lambda: a.shared.step > 3)
    c = ring.rings.add(PretendWorker("c", slots=SLOTS, total=LONG, seed=7))
    wait_until(lambda: c.applied, what="it has the state")
    spoil(a, "verified", a.shared.step + 2)
    wait_until(lambda: c.error or a.outcome, what="it is noticed")
    assert isinstance(c.error, Diverged)
    (told,) = (e for e in c.outlet.events if isinstance(e, JobDoubted))
    assert told.worker == "c"
    assert told.step <= a.shared.step
    assert told.reason in str(c.error)


def test_with_verification_off_nothing_is_asked_for(rings, calm):
    for name in "ab":
        rings.add(PretendWorker(name, slots=SLOTS, total=TOTAL, verify=False))
    rings.world(["a", "b"])
    assert set(rings.finish(["a", "b"])) == {calm}
    assert not any("verify" in line for name in "ab" for line in rings.workers[name].trail)


@pytest.mark.parametrize("seed", range(int(os.environ.get("REKNIT_STORMS", "8"))))
def test_a_storm_of_flips_deaths_and_joins_never_ends_with_wrong_bits(heal, seed):
    """Random histories; the seed says all. Either the calm run's bits, or nobody goes on: never others."""
    rng = random.Random(seed)
    names = "abcde"[: rng.randrange(2, 6)]
    ring = heal(names, LONG)
    flips: list[tuple[str, str, int]] = []

    def let_flip(worker: PretendWorker) -> None:
        due = sorted(rng.sample(range(2, LONG - 6), rng.randrange(0, 3)))
        moments = [rng.choice(MOMENTS) for _ in due]

        def meddle(when: str, step: int) -> None:
            if due and step >= due[0] and when == moments[0] and step < LONG - 2:
                flips.append((worker.name, when, step))
                due.pop(0)
                moments.pop(0)
                worker.weights = worker.weights.copy()
                worker.weights.view(np.uint32)[rng.randrange(worker.weights.size)] ^= 1 << rng.randrange(32)

        worker.meddle = meddle

    for name in names:
        let_flip(ring[name])
        ring[name].hold = lambda _step, _slot: time.sleep(0.0005)
    ring.begin()
    for change in range(rng.randrange(0, 4)):
        at = rng.randrange(LONG - 10)
        wait_until(lambda at=at: any(w.error or w.outcome or w.shared.step >= at for w in ring.rings.workers.values()))
        if any(w.error or w.outcome for w in ring.rings.workers.values()):
            break
        if rng.random() < 0.5 and len(ring.names) > 2:  # what flips between two looks of one that is alone, nobody sees
            victim = rng.choice(ring.names)
            if any(ring[n].shared.whole and ring[n].shared.step > 0 for n in ring.names if n != victim):
                ring.names = [n for n in ring.names if n != victim]
                ring[victim].kill()
        else:
            joiner = PretendWorker(f"j{change}", slots=SLOTS, total=LONG, seed=9)
            let_flip(joiner)
            ring.rings.add(joiner)
            ring.names = [*ring.names, joiner.name]
        ring.rings.world(ring.names, **ring.roles)
    workers = ring.rings.workers

    def over() -> bool:
        ended = all(workers[n].outcome or workers[n].error for n in ring.names)
        return ended or any(w.error for w in workers.values())

    wait_until(over, what=f"the end of {flips}")
    gave_up = [w.error for w in workers.values() if w.error is not None]
    if gave_up:
        assert all(isinstance(e, Diverged) for e in gave_up), gave_up
        assert flips
        return
    assert {workers[n].digest for n in ring.names} == {calm_run(LONG)}, flips
