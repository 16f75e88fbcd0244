"""A newcomer computes a slot that another one has computed: the same bits, or it says so."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from reknit.core.events import Range
from reknit.worker.rehearsal import Rehearsal, gradient_digest
from reknit.worker.ring.control import Settled, SlotNote, Wishes, decode, encode, settle
from reknit.worker.ring.pieces import Section, Shape
from reknit.worker.ring.resend import Committed
from support.rings import PretendWorker, Rings, wait_until

OWNERS = (Range(worker="a", first=0, end=3), Range(worker="b", first=3, end=6))
SLOTS, TOTAL = 6, 60


def committed(step: int = 4, proof: tuple[int, int] | tuple[()] = (4, 99)) -> Committed:
    return Committed(step, 1, OWNERS, Settled(owners=OWNERS, proof=proof), 7, 0)


@pytest.mark.parametrize(
    ("tries", "outcomes"),
    [
        ([99], ["same"]),
        ([5, 5], ["again", "other"]),
        ([5, 6], ["again", "unsteady"]),
        ([5, 99], ["again", "unsteady"]),
    ],
)
def test_what_the_tries_say(tries: list[int], outcomes: list[str]) -> None:
    rehearsal = Rehearsal()
    assert not rehearsal.wanted(committed()), "it has its state from nobody"
    rehearsal.begin()
    assert not rehearsal.wanted(committed(proof=()))
    for digest, outcome in zip(tries, outcomes, strict=True):
        assert rehearsal.wanted(committed())
        assert (rehearsal.slot, rehearsal.owner) == (4, "b")
        assert rehearsal.compare(digest) == outcome
    assert not rehearsal.wanted(committed()), "once is enough"
    rehearsal.begin()
    assert rehearsal.wanted(committed())


def test_words_name_the_slot_and_the_owner() -> None:
    rehearsal = Rehearsal()
    rehearsal.begin()
    rehearsal.wanted(committed())
    assert rehearsal.words(4, "other").startswith("slot 4 of step 4 has another gradient here than at b")
    assert "is not seeded" in rehearsal.words(4, "unsteady")


def test_the_digest_is_of_gradients_only() -> None:
    shape = Shape((Section("f4", 0, 40, gradients=24), Section("f8", 40, 80, gradients=16), Section("raw", 80, 96)))
    buffer = np.arange(96, dtype=np.uint8)
    right = gradient_digest(shape, buffer)
    for at in range(96):
        buffer[at] ^= 1
        changed = gradient_digest(shape, buffer) != right
        assert changed == (at < 24 or 40 <= at < 56), at
        buffer[at] ^= 1


def test_a_proof_travels_with_the_step_while_somebody_learns() -> None:
    wishes = Wishes(notes=(SlotNote(1, {"a": (1.0, 2.0)}), SlotNote(4, proof=2**64 - 1)), fed=True)
    assert decode(encode(wishes)) == wishes
    settled = settle(wishes, OWNERS, 6, generation=1, ring=["a", "b"], current={"a", "b"})
    assert (settled.rehearse, settled.proof) == (True, (4, 2**64 - 1))
    assert decode(encode(settled)) == settled
    calm = settle(Wishes(), OWNERS, 6, generation=1, ring=["a", "b"], current={"a", "b"})
    assert (calm.rehearse, calm.proof) == (False, ())


@pytest.fixture
def rings() -> Iterator[Rings]:
    r = Rings()
    yield r
    r.close()


def joined(rings: Rings, joiner: PretendWorker) -> None:
    """Two train slowly, a third learns beside the ring; then they train on together."""
    for name in "ab":
        worker = rings.add(PretendWorker(name, slots=SLOTS, total=TOTAL))
        worker.hold = lambda _step, _slot: time.sleep(0.002)
    rings.world(["a", "b"])
    wait_until(lambda: rings.workers["a"].shared.step > 3)
    rings.add(joiner)
    wait_until(lambda: joiner.rehearsals and joiner.rehearsals[-1][1] != "again", what="it has rehearsed")
    rings.world(["a", "b", "c"], planned=True)


@pytest.mark.parametrize("other", ["nothing", "always", "each time"])
def test_a_candidate_rehearses_while_it_catches_up(rings: Rings, other: str) -> None:
    joiner = PretendWorker("c", slots=SLOTS, total=TOTAL, seed=7)
    right, tries = joiner._slot, []

    def slot(step: int, number: int) -> np.ndarray:
        values = right(step, number)
        if joiner.shared.generation == 0:  # it computes nothing that counts yet
            tries.append(step)
            values[0] ^= {"nothing": 0, "always": 1, "each time": len(tries)}[other]
        return values

    joiner._slot = slot
    joined(rings, joiner)
    hashes = set(rings.finish(["a", "b", "c"]))
    assert len(hashes) == 1
    outcome = {"nothing": "same", "always": "other", "each time": "unsteady"}[other]
    assert [o for _, o in joiner.rehearsals] == (["same"] if other == "nothing" else ["again", outcome])
    assert not any(w.rehearsals for n, w in rings.workers.items() if n != "c")


def test_nothing_is_proved_when_nobody_learns(rings: Rings) -> None:
    noted = []
    for name in "ab":
        worker = rings.add(PretendWorker(name, slots=SLOTS, total=8))
        put = worker.shared.put
        worker.shared.put = lambda step, slot, buffer, note=None, put=put: (
            noted.append(note),
            put(step, slot, buffer, note),
        )
    rings.world(["a", "b"])
    rings.finish(["a", "b"])
    assert set(noted) == {None}
