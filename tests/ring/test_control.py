"""What a step agrees on besides its gradient: merging is order-free, means are in slot order, bytes go both ways."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from reknit.core import wire
from reknit.core.errors import WireError
from reknit.core.events import Range
from reknit.worker.means import fold
from reknit.worker.ring import control
from reknit.worker.ring.control import Plan, Settled, SlotNote, Wishes

RING = ("w0", "w1", "w2")
OWNERS = (Range(worker="w0", first=0, end=3), Range(worker="w1", first=3, end=6), Range(worker="w2", first=6, end=8))


def settle(wishes: Wishes, generation: int = 4) -> Settled:
    return control.settle(wishes, OWNERS, 8, generation=generation, ring=RING, current=RING)


def test_means_are_the_same_bits_for_every_split_and_order_of_merging() -> None:
    rng = random.Random(3)
    notes = [SlotNote(s, {"loss": (rng.uniform(-1e3, 1e-3), 32.0), "hits": (float(s), 32.0)}) for s in range(8)]
    total = weight = 0.0
    for note in notes:
        total, weight = total + note.metrics["loss"][0], weight + note.metrics["loss"][1]
    for _ in range(50):
        shuffled = rng.sample(notes, 8)
        parts = [Wishes(notes=tuple(sorted(shuffled[i::3], key=lambda n: n.slot))) for i in range(3)]
        merged = control.merge(control.merge(parts[2], parts[0]), parts[1])
        assert settle(merged).metrics == {"hits": 28.0 / 256.0, "loss": total / weight}


def test_a_metric_counts_where_it_was_given() -> None:
    notes = (SlotNote(0, {"a": (2.0, 1.0)}), SlotNote(1, {"b": (3.0, 2.0)}), SlotNote(2, {"c": (0.0, 0.0)}))
    means = fold(note.metrics for note in notes)
    assert (means["a"], means["b"]) == (2.0, 1.5)
    assert math.isnan(means["c"])


def test_slots_that_are_not_finite_are_named() -> None:
    merged = control.merge(Wishes(notes=(SlotNote(5, nonfinite=(9, 8)),)), Wishes(notes=(SlotNote(1),)))
    assert settle(merged).nonfinite == ((5, (9, 8)),)


@pytest.mark.parametrize(
    ("heard", "generation", "switch"),
    [((5, 5), 4, 5), ((5, 0), 4, 0), ((5, 6), 4, 5), ((4, 4), 4, 0), ((0, 0), 4, 0)],
)
def test_the_ring_switches_to_a_planned_world_that_all_actives_heard_of(
    heard: tuple[int, int], generation: int, switch: int
) -> None:
    merged = control.merge(Wishes(switch=heard[0]), Wishes(switch=heard[1]))
    assert settle(merged, generation).switch == switch


def test_a_run_that_stops_does_not_switch() -> None:
    wishes = Wishes(leaving=frozenset(RING), switch=9)
    settled = settle(wishes)
    assert settled.stop
    assert settled.switch == 0


def test_the_last_who_have_the_state_stay_while_somebody_learns_outside() -> None:
    all_leave = control.merge(Wishes(leaving=frozenset(RING)), Wishes(fed=True, switch=0))
    settled = settle(all_leave)
    assert (settled.stop, settled.owners, settled.leaving) == (False, OWNERS, frozenset())
    some = settle(control.merge(Wishes(leaving=frozenset({"w1"})), Wishes(fed=True)))
    assert (some.leaving, [r.worker for r in some.owners]) == ({"w1"}, ["w0", "w2"]), "others stay"
    assert settle(control.merge(all_leave, Wishes(switch=9, fed=True))).switch == 0


def test_the_last_who_have_the_state_stay_while_somebody_learns_in_the_ring() -> None:
    def settled(*leaving: str) -> Settled:
        wishes = Wishes(leaving=frozenset(leaving))
        return control.settle(wishes, OWNERS[:2], 6, generation=4, ring=RING, current=RING[:2])

    assert (settled("w0", "w1").stop, settled("w0", "w1").owners) == (False, OWNERS[:2])
    assert settled("w0", "w1", "w2").stop, "the learner leaves too: nobody is waited for"
    assert not settled("w0").stop


@pytest.mark.parametrize("who", [0, 1])
def test_a_job_that_is_to_stop_waits_for_nobody_who_learns(who: int) -> None:
    asked = [Wishes(leaving=frozenset(RING[:2]), fed=True), Wishes(stopping=True)]
    settled = control.settle(
        control.merge(asked[who], asked[1 - who]), OWNERS[:2], 6, generation=4, ring=RING, current=RING[:2]
    )
    assert settled.stop


def test_a_job_that_is_to_stop_does_not_go_on_with_its_spares() -> None:
    leaving = Wishes(leaving=frozenset(RING[:2]), checkpoint="last")
    ring = ("w0", "w1", "spare")
    goes_on = control.settle(leaving, OWNERS[:2], 6, generation=4, ring=ring, current=ring)
    assert (goes_on.stop, [r.worker for r in goes_on.owners]) == (False, ["spare"])
    stopping = control.merge(leaving, Wishes(stopping=True))
    stops = control.settle(stopping, OWNERS[:2], 6, generation=4, ring=ring, current=ring)
    assert (stops.stop, stops.owners, stops.checkpoint) == (True, (), "last")
    one = dataclasses.replace(stopping, leaving=frozenset({"w0"}))
    not_yet = control.settle(one, OWNERS[:2], 6, generation=4, ring=ring, current=ring)
    assert (not_yet.stop, not_yet.checkpoint) == (False, ""), "it waits for the last step"


def test_the_last_who_leave_wait_for_a_last_checkpoint_to_be_asked_for() -> None:
    ring = ("w0", "w1")
    both = control.merge(Wishes(leaving=frozenset({"w0"}), unsaved=True), Wishes(leaving=frozenset({"w1"})))
    assert both == control.merge(Wishes(leaving=frozenset({"w1"})), Wishes(leaving=frozenset({"w0"}), unsaved=True))

    def settled(wishes: Wishes) -> Settled:
        return control.settle(wishes, OWNERS[:2], 6, generation=4, ring=ring, current=ring)

    waits = settled(both)
    assert (waits.stop, waits.owners, waits.leaving) == (False, OWNERS[:2], frozenset())
    asked = settled(dataclasses.replace(both, checkpoint="last"))
    assert (asked.stop, asked.owners, asked.checkpoint) == (True, (), "last")
    assert settled(dataclasses.replace(both, unsaved=False)).stop, "nobody waits for ever"
    one = settled(Wishes(leaving=frozenset({"w0"}), unsaved=True))
    assert (one.leaving, [r.worker for r in one.owners]) == (frozenset({"w0"}), ["w1"]), "whoever is not the last goes"


@pytest.mark.parametrize(
    "piece",
    [
        Wishes(),
        Wishes(
            plan=Plan(3, 2, OWNERS),
            leaving=frozenset({"w1"}),
            checkpoint="c-7",
            ledger=12,
            chain=2**64 - 1,
            weights=2**63,
            notes=(SlotNote(0, {"loss": (float("nan"), 32.0)}, (1, 2)), SlotNote(4)),
            switch=8,
            fed=True,
            stopping=True,
            unsaved=True,
        ),
        Settled(owners=OWNERS),
        Settled((), frozenset({"w0"}), "c", 1, True, 5, 6, 7, {"loss": math.inf}, ((3, (1, 2)), (4, ()))),
    ],
)
def test_bytes_go_both_ways(piece: Wishes | Settled) -> None:
    again = control.decode(control.encode(piece))
    assert repr(again) == repr(piece)


@pytest.mark.parametrize("plain", [[], ["wishes"], ["settled", 1], ["wishes", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], ["x"]])
def test_other_bytes_are_refused(plain: list[object]) -> None:
    with pytest.raises(WireError):
        control.decode(wire.pack(plain))
