"""Slots whose first pieces are reduced while the rest is computed: real engines on real sockets, a pretend model."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from reknit.core.events import RingBroken
from reknit.worker.ring.frames import Kind
from reknit.worker.ring.pieces import Shape
from reknit.worker.ring.reduction import Reduction
from support.rings import FLOATS, PretendWorker, Rings, wait_until

SLOTS, TOTAL = 8, 10
SIZE = 1024
EARLY = 4 * FLOATS // SIZE
"""Pieces that hold nothing but gradients."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    cut = Shape.pieces
    monkeypatch.setattr(Shape, "pieces", lambda self, size=SIZE: cut(self, size))


@pytest.fixture
def rings():
    r = Rings()
    yield r
    r.close()


@pytest.fixture(scope="module")
def calm() -> str:
    r = Rings()
    try:
        r.add(PretendWorker("a", slots=SLOTS, total=TOTAL))
        r.world(["a"])
        return r.finish(["a"])[0]
    finally:
        r.close()


class EarlyWorker(PretendWorker):
    """Gives the pieces of its last slot one by one.

    `between(step, slot, pieces)` is called after each. In steps that `lies` names, what it gives is wrong.
    """

    def __init__(self, name: str, **options) -> None:
        super().__init__(name, slots=SLOTS, total=TOTAL, **options)
        self.between: Callable[[int, int, int], None] = lambda step, slot, pieces: None
        self.begun: list[tuple[int, int]] = []
        self.lies: set[int] = set()
        self.broke: list[bool] = []

    def _compute(self, step: int, slot: int) -> None:
        right = self._slot(step, slot)
        buffer = self.shared.pool.take()
        buffer[:] = 0xAB
        if not self.shared.early.begin(step, slot, buffer):
            buffer[:] = right
            self.shared.put(step, slot, buffer)
            return
        self.begun.append((step, slot))
        lie = step in self.lies
        for pieces in range(1, EARLY + 1):
            if not lie:
                buffer[(pieces - 1) * SIZE : pieces * SIZE] = right[(pieces - 1) * SIZE : pieces * SIZE]
            self.shared.early.advance(pieces)
            self.between(step, slot, pieces)
        if lie:
            self.lies.discard(step)
            self.broke.append(self.shared.early.spoil("a gradient has changed"))
            buffer = self.shared.pool.take()
            buffer[:] = right
        buffer[EARLY * SIZE :] = right[EARLY * SIZE :]
        self.shared.put(step, slot, buffer)
        self.shared.early.end()

    def gate_at(self, step: int, pieces: int) -> threading.Event:
        """Stop after so many pieces of the last slot of a step, until the event is set."""
        gate = threading.Event()
        self.paused = False

        def between(now: int, slot: int, given: int) -> None:
            while (now, given) == (step, pieces) and not gate.is_set() and not self.shared.closed:
                self.paused = True
                gate.wait(0.001)

        self.between = between
        return gate


@pytest.fixture
def heard(monkeypatch) -> list[tuple[str, int, Kind, int]]:
    """What each worker took in: (worker, step, kind, piece)."""
    found: list[tuple[str, int, Kind, int]] = []
    check = Reduction._check

    def checked(self, header):
        check(self, header)
        name = threading.current_thread().name
        found.append((name, self.step, header.kind, header.piece))

    monkeypatch.setattr(Reduction, "_check", checked)
    return found


def add(rings: Rings, *names: str, **options) -> list[EarlyWorker]:
    made = []
    for name in names:
        worker = EarlyWorker(name, **options)
        worker.engine._thread.name = name
        made.append(rings.add(worker))
    return made


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 10])
def test_same_bits_for_any_number_of_workers(rings, calm, count):
    names = [f"w{i}" for i in range(count)]
    workers = add(rings, *names)
    rings.world(names)
    assert set(rings.finish(names)) == {calm}
    busy = [w for w in workers if w.computed]
    assert len(busy) == min(count, SLOTS)
    assert all(len(w.begun) == TOTAL for w in busy), "one slot of each worker a step"


def test_same_bits_with_an_uneven_tail(rings):
    used = {4: 3, 9: 1}
    alone = Rings()
    alone.add(PretendWorker("x", slots=SLOTS, total=TOTAL, used=lambda step: used.get(step, SLOTS)))
    alone.world(["x"])
    (expected,) = alone.finish(["x"])
    alone.close()
    names = ["a", "b", "c", "d"]
    add(rings, *names, used=lambda step: used.get(step, SLOTS))
    rings.world(names)
    assert set(rings.finish(names)) == {expected}


def test_the_first_active_sends_early_and_takes_back_what_is_finished(rings, calm, heard):
    a, _ = add(rings, "a", "b")
    gate = a.gate_at(3, 7)
    rings.world(["a", "b"])
    wait_until(lambda: a.paused)
    wait_until(lambda: ("b", 3, Kind.REDUCE, 6) in heard, what="b has heard all that a gave")
    wait_until(lambda: ("a", 3, Kind.FINAL, 6) in heard, what="a has heard what became of it")
    assert not any(step == 3 and piece > 6 for _, step, _, piece in heard)
    assert 3 not in a.applied
    gate.set()
    assert set(rings.finish(["a", "b"])) == {calm}


def test_one_in_the_middle_takes_in_what_it_cannot_add_to_yet(rings, calm, heard):
    _, b, _ = add(rings, "a", "b", "c")
    gate = b.gate_at(3, 4)
    rings.world(["a", "b", "c"])
    wait_until(lambda: b.paused)
    wait_until(lambda: ("b", 3, Kind.REDUCE, EARLY) in heard, what="all partial sums of a")
    wait_until(lambda: ("b", 3, Kind.FINAL, 3) in heard, what="the first results, behind them on the same link")
    assert not any(who == "c" and step == 3 and piece > 3 for who, step, _, piece in heard)
    gate.set()
    assert set(rings.finish(["a", "b", "c"])) == {calm}


def test_the_last_active_gives_results_early(rings, calm, heard):
    _, b = add(rings, "a", "b")
    gate = b.gate_at(3, 5)
    rings.world(["a", "b"])
    wait_until(lambda: b.paused)
    wait_until(lambda: ("a", 3, Kind.FINAL, 4) in heard)
    assert not any(who == "a" and step == 3 and kind is Kind.FINAL and piece > 4 for who, step, kind, piece in heard)
    gate.set()
    assert set(rings.finish(["a", "b"])) == {calm}


def test_a_sole_active_gives_results_to_its_spares_early(rings, calm, heard):
    a, s = add(rings, "a", "s")
    gate = a.gate_at(3, 5)
    rings.world(["a", "s"], s="spare")
    wait_until(lambda: a.paused)
    wait_until(lambda: ("s", 3, Kind.FINAL, 4) in heard)
    gate.set()
    assert set(rings.finish(["a", "s"])) == {calm}
    assert not s.computed


@pytest.mark.parametrize(("gated", "victim"), [("a", "b"), ("a", "c"), ("b", "c"), ("c", "b"), ("b", "a"), ("c", "a")])
def test_a_death_in_the_middle_of_an_early_slot(rings, calm, gated, victim):
    """The slot that was half given is finished once and used in the world that follows; nothing of the half is."""
    workers = {w.name: w for w in add(rings, "a", "b", "c")}
    held = workers[gated]
    gate = held.gate_at(4, 6)
    rings.world(["a", "b", "c"])
    wait_until(lambda: held.paused)
    workers[victim].kill()
    left = [n for n in workers if n != victim]
    rings.world(left)
    wait_until(lambda: all(workers[n].shared.generation == 2 for n in left))
    gate.set()
    assert set(rings.finish(left)) == {calm}
    assert held.computed.count(held.begun[4]) == 1, "computed once"


def test_a_newcomer_in_the_middle_of_an_early_slot(rings, calm):
    a, _ = add(rings, "a", "b")
    gate = a.gate_at(4, 6)
    rings.world(["a", "b"])
    wait_until(lambda: a.paused)
    add(rings, "c", seed=7)
    rings.world(["a", "b", "c"])
    wait_until(lambda: rings.workers["b"].shared.generation == 2)
    gate.set()
    assert set(rings.finish(["a", "b", "c"])) == {calm}


def mended_by_hand(rings: Rings, names: list[str]) -> Callable[[], None]:
    """As membership does it: a broken ring without a death is followed by a new world of the same members."""
    ended = threading.Event()

    def look() -> None:
        seen = 0
        while not ended.wait(0.001):
            broken = [e for n in names for e in rings.workers[n].outlet.events if isinstance(e, RingBroken)]
            if len(broken) > seen and max(e.generation for e in broken) == rings.generation:
                seen = len(broken)
                rings.world(names)

    thread = threading.Thread(target=look)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end


@pytest.mark.parametrize("liar", ["a", "b", "c"])
def test_what_was_given_and_was_wrong_is_committed_nowhere(rings, calm, liar):
    names = ["a", "b", "c"]
    workers = {w.name: w for w in add(rings, *names)}
    workers[liar].lies = {3, 6}
    gate = workers[liar].gate_at(3, EARLY)
    end = mended_by_hand(rings, names)
    try:
        rings.world(names)
        wait_until(lambda: workers[liar].paused)
        wait_until(lambda: workers[liar].shared.early._given, what="some of it was given")
        gate.set()
        assert set(rings.finish(names)) == {calm}
    finally:
        end()
    assert workers[liar].broke[0] is True
    told = {name: [e for e in workers[name].outlet.events if isinstance(e, RingBroken)] for name in names}
    assert any(told.values())
    # its neighbours may be heard first; then a newer world is there before it has said anything
    assert {e.error for e in told[liar]} <= {"a gradient has changed"}
    for worker in workers.values():
        assert worker.applied == list(range(TOTAL))
        assert len(worker.computed) == len(set(worker.computed)), "no slot was computed twice"


def test_what_was_wrong_and_not_given_breaks_nothing(rings, calm):
    a, b = add(rings, "a", "b")
    gate = a.pause_at(3, 0)
    b.lies = {3}  # its partial sums need those of a, which is at its first slot
    rings.world(["a", "b"])
    wait_until(lambda: b.broke)
    assert b.broke == [False]
    gate.set()
    assert set(rings.finish(["a", "b"])) == {calm}
    assert not [e for w in (a, b) for e in w.outlet.events if isinstance(e, RingBroken)]


@pytest.mark.parametrize("seed", range(6))
def test_a_storm_keeps_the_bits(rings, calm, seed):
    """Gates at random places, a lie, a death."""
    rng = random.Random(seed)
    names = ["a", "b", "c", "d"][: rng.choice([3, 4])]
    workers = {w.name: w for w in add(rings, *names)}
    liar, held, victim = rng.choice(names), rng.choice(names[:2]), names[-1]
    workers[liar].lies = {rng.randrange(1, 4)}
    gate = workers[held].gate_at(5, rng.randrange(1, EARLY))
    end = mended_by_hand(rings, names)
    rings.world(names)
    try:
        wait_until(lambda: workers[held].paused)
    finally:
        end()
    workers[victim].kill()
    left = names[:-1]
    end = mended_by_hand(rings, left)
    try:
        rings.world(left)
        gate.set()
        assert set(rings.finish(left)) == {calm}
    finally:
        end()
