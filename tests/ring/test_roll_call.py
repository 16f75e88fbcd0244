"""The roll call's decision and the healing of owners: tables and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.core import plan as plans
from reknit.core.events import Range
from reknit.worker.ring import control, roll_call
from reknit.worker.ring.control import Plan
from reknit.worker.ring.roll_call import Diverged, Entry, decide, heal
from reknit.worker.ring.vote import Wrong


def ranges(text: str) -> tuple[Range, ...]:
    """`a:0-3 b:3-8` as ranges."""
    return tuple(
        Range(worker=w, first=int(f), end=int(e))
        for w, span in (part.split(":") for part in text.split())
        for f, e in (span.split("-"),)
    )


def entry(worker: str, held: int, **fields) -> Entry:
    values = {"role": "active", "current": True, "waiting": False, "result": True, "chain": 100 + held} | fields
    return Entry(worker=worker, incarnation=1, held=held, **values)


@pytest.mark.parametrize(
    ("known", "ring", "spares", "healed", "orphans"),
    [
        ("a:0-4 b:4-8", "a b", "", "a:0-4 b:4-8", 0),
        ("a:0-3 b:3-6 c:6-8", "a c", "", "a:0-5 c:5-8", 3),  # the odd slot goes to the left
        ("a:0-3 b:3-6 c:6-8", "b c", "", "b:0-6 c:6-8", 3),  # the first died
        ("a:0-3 b:3-6 c:6-8", "a b", "", "a:0-3 b:3-8", 2),  # the last died
        ("a:0-2 b:2-4 c:4-6 d:6-8", "a d", "", "a:0-4 d:4-8", 4),  # two neighbours died
        ("a:0-2 b:2-4 c:4-6 d:6-8", "c", "", "c:0-8", 6),  # all but one
        ("a:0-3 b:3-6 c:6-8", "a s c", "s", "a:0-3 s:3-6 c:6-8", 3),  # a spare in the dead one's place
        ("a:0-3 b:3-6 c:6-8", "a c s", "s", "a:0-5 c:5-8", 3),  # a spare elsewhere does not help
        ("a:0-4 b:4-8", "s", "s", "s:0-8", 8),  # only a spare is left
        ("a:0-3 b:3-6 c:6-8", "c b a", "", "c:0-3 b:3-6 a:6-8", 5),  # re-ordered: a fresh split, b keeps its own
    ],
)
def test_heal(known, ring, spares, healed, orphans):
    assert heal(ranges(known), ring.split(), ring.split(), 8, spares.split()) == (ranges(healed), orphans)


@given(st.integers(1, 40), st.integers(1, 10), st.data())
def test_heal_covers_and_keeps(slots, count, data):
    workers = [f"w{i}" for i in range(count)]
    known = tuple(r for r in plans.split(slots, workers) if r.end > r.first)
    alive = data.draw(st.lists(st.sampled_from(workers), min_size=1, unique=True))
    ring = [w for w in workers if w in alive]
    healed, orphans = heal(known, ring, ring, slots)
    assert plans.covers(healed, slots)
    assert [r.worker for r in healed] == [w for w in ring if w in {r.worker for r in healed}]
    kept = {r.worker: r for r in known if r.worker in alive}
    for worker, r in kept.items():
        now = next(h for h in healed if h.worker == worker)
        assert now.first <= r.first <= r.end <= now.end, "a survivor lost a slot"
    assert orphans == slots - sum(r.end - r.first for r in kept.values())


def test_all_at_one_step():
    owners = ranges("a:0-4 b:4-8")
    d = decide([entry("a", 6, owners=owners), entry("b", 6, owners=owners, computed=(4, 5))], 8, 3)
    assert (d.furthest, d.step, d.donor, d.lacking, d.owners, d.orphans, d.kept) == (6, 7, "", (), owners, 0, 2)


def test_one_lacks_the_furthest_result():
    owners = ranges("a:0-4 b:4-8")
    d = decide([entry("a", 6, owners=owners), entry("b", 5, owners=ranges("a:0-8"))], 8, 3)
    assert (d.furthest, d.donor, d.lacking, d.owners) == (6, "a", ("b",), owners)


def test_a_holder_without_the_bytes_teaches_instead_of_sending_again():
    owners = ranges("a:0-4 b:4-8")
    d = decide([entry("a", 6, owners=owners, result=False), entry("b", 5)], 8, 3)
    assert (d.donor, d.lacking, d.learners, d.current) == ("", (), (("b", "a"),), {"a"})


def test_who_lacks_two_results_learns_anew():
    owners = ranges("a:0-8")
    d = decide([entry("a", 6, owners=owners), entry("b", 4)], 8, 3)
    assert (d.donor, d.lacking, d.learners, d.current) == ("", (), (("b", "a"),), {"a"})


def test_a_death_gives_the_slots_to_the_neighbours():
    owners = ranges("a:0-3 x:3-6 b:6-8")
    d = decide([entry("a", 6, owners=owners, computed=(0, 1)), entry("b", 6, owners=owners)], 8, 3)
    assert (d.owners, d.orphans, d.kept) == (ranges("a:0-5 b:5-8"), 3, 2)
    assert "3 orphaned slots" in d.words


def test_a_joiner_learns_from_a_holder_of_the_furthest_result():
    owners = ranges("a:0-4 b:4-8")
    joiner = entry("c", -1, current=False, waiting=True)
    d = decide([entry("a", 5, owners=()), entry("b", 6, owners=owners), joiner], 8, 3)
    assert d.learners == (("c", "b"),)
    assert d.current == {"a", "b"}
    assert d.owners == owners


def test_several_joiners_are_spread_over_the_donors():
    owners = ranges("a:0-4 b:4-8")
    joiners = [entry(n, -1, current=False, waiting=True) for n in ("c", "d")]
    d = decide([entry("a", 6, owners=owners), entry("b", 6, owners=owners), *joiners], 8, 3)
    assert {donor for _, donor in d.learners} == {"a", "b"}


def test_cold_start_prefers_memory_then_checkpoint_then_the_first():
    cold = {"current": False, "waiting": True}
    assert decide([entry("a", -1, **cold), entry("b", -1, **cold)], 8, 1).leader == "a"
    assert decide([entry("a", -1, **cold), entry("b", -1, restorable=40, **cold)], 8, 1).leader == "b"
    assert decide([entry("a", -1, restorable=40, **cold), entry("b", 50, memory=50, **cold)], 8, 1).leader == "b"
    assert decide([entry("a", -1, restorable=60, **cold), entry("b", 50, memory=50, **cold)], 8, 1).leader == "a"


def test_equal_fresh_states_need_no_transfer_and_all_begin():
    d = decide(
        [entry("a", -1, digest=7), entry("b", -1, digest=7, current=False, waiting=True),
         entry("c", -1, digest=8, current=False, waiting=True)], 8, 1,
    )  # fmt: skip
    assert d.current == {"a", "b"}
    assert d.learners == (("c", "a"),) or d.learners == (("c", "b"),)
    assert {r.worker for r in d.owners} == {"a", "b", "c"}


def test_spares_and_leavers_do_not_begin():
    d = decide([entry("a", -1), entry("b", -1, role="spare"), entry("c", -1, leaving=True)], 8, 1)
    assert d.owners == ranges("a:0-8")


def test_a_heard_plan_is_used_for_a_step_that_nobody_has_begun():
    plan = Plan(4, 1, ranges("a:0-6 b:6-8"))
    assert decide([entry("a", -1, plan=plan), entry("b", -1)], 8, 4).owners == plan.ranges
    assert decide([entry("a", -1, plan=plan), entry("b", -1)], 8, 5).owners == ranges("a:0-4 b:4-8")


def test_different_results_of_one_step_are_never_passed_over():
    with pytest.raises(Diverged, match="a 0000000000000001, b 0000000000000002"):
        decide([entry("a", 6, chain=1), entry("b", 6, chain=2)], 8, 3)


def test_the_minority_learns_from_the_majority():
    owners = ranges("a:0-3 b:3-6 c:6-8")
    d = decide([entry(n, 6, owners=owners, chain=c) for n, c in (("a", 2), ("b", 1), ("c", 2))], 8, 3)
    assert ([w.worker for w in d.diverged], d.current) == (["b"], {"a", "c"})
    assert "b held another result in step 6 than the majority and learns anew" in d.words
    assert dict(d.learners)["b"] in {"a", "c"}
    assert d.owners == ranges("a:0-5 c:5-8")


def test_other_weights_in_the_step_in_flight_orphan_the_slots_computed_with_them():
    owners = ranges("a:0-3 b:3-6 c:6-8")
    d = decide(
        [entry(n, 6, owners=owners, weights=w, computed=c)
         for n, w, c in (("a", 2, (0, 1, 2)), ("b", 1, (3, 4, 5)), ("c", 2, (6, 7)))], 8, 3,
    )  # fmt: skip
    assert (d.diverged, d.current) == ((Wrong("b", "weights", 1, 2, "majority"),), {"a", "c"})
    assert (d.step, d.owners, d.orphans, d.kept) == (7, ranges("a:0-5 c:5-8"), 3, 5)
    assert dict(d.learners)["b"] in {"a", "c"}
    assert "b held other weights in step 7 than the majority and learns anew" in d.words


def test_who_has_not_taken_a_digest_is_asked_and_nothing_else_is_decided():
    owners = ranges("a:0-4 b:4-8")
    entries = [entry("a", 6, owners=owners, weights=1), entry("b", 6, owners=owners, weights=2), entry("c", 6)]
    d = decide(entries, 8, 3)
    assert (d.ask, d.diverged, d.owners, d.learners) == (("c",), (), (), ())
    told = decide([*entries[:2], entry("c", 6, weights=2)], 8, 3)
    assert ([w.worker for w in told.diverged], told.ask) == (["a"], ())
    assert told.owners == ranges("b:0-8")


def test_of_two_the_one_whose_own_weights_changed_learns():
    owners = ranges("a:0-4 b:4-8")
    d = decide([entry("a", 6, owners=owners, weights=1, before=2), entry("b", 6, owners=owners, weights=2)], 8, 3)
    assert d.diverged == (Wrong("a", "weights", 1, 2, "own"),)
    assert (d.learners, d.owners) == ((("a", "b"),), ranges("b:0-8"))


def test_without_a_majority_of_weights_nothing_goes_on():
    owners = ranges("a:0-4 b:4-8")
    with pytest.raises(Diverged, match="different weights in step 7 and no majority"):
        decide([entry("a", 6, owners=owners, weights=1), entry("b", 6, owners=owners, weights=2)], 8, 3)


def test_weights_of_another_step_are_not_compared():
    owners = ranges("a:0-4 b:4-8")
    d = decide([entry("a", 6, owners=owners, weights=1), entry("b", 5, weights=2)], 8, 3)
    assert (d.diverged, d.lacking) == ((), ("b",))


def test_who_has_another_result_is_not_asked_for_its_weights():
    owners = ranges("a:0-3 b:3-6 c:6-8")
    entries = [entry(n, 6, owners=owners, chain=c, weights=w) for n, c, w in (("a", 2, 5), ("b", 1, 6), ("c", 2, 0))]
    d = decide(entries, 8, 3)
    assert [(w.worker, w.what) for w in d.diverged] == [("b", "result")]
    assert d.ask == ()


def test_states_after_the_last_step_differ_only_where_a_majority_says_so():
    three = [entry(n, 6, weights=1, state=s, finished=True) for n, s in (("a", 8), ("b", 9), ("c", 8))]
    assert [(w.worker, w.what) for w in decide(three, 8, 3).diverged] == [("b", "state")]
    assert decide(three[:2], 8, 3).diverged == ()
    assert roll_call.agreed([(1, 8), (1, 9)])
    assert not roll_call.agreed([(1, 8), (1, 9), (1, 8)])
    assert not roll_call.agreed([(1, 8), (2, 8)])


def test_in_mid_run_a_difference_of_states_without_a_majority_ends_it():
    """Where a checkpoint is to be written from them, say: it must not hold bits that nobody vouches for."""
    two = [entry(n, 6, weights=1, state=s) for n, s in (("a", 8), ("b", 9))]
    with pytest.raises(Diverged, match="different states in step 7"):
        decide(two, 8, 3)


digests = st.integers(0, 2)


@given(
    st.lists(
        st.tuples(st.integers(4, 6), st.booleans(), digests, digests, st.booleans(), digests),
        min_size=1,
        max_size=6,
    )
)
def test_whoever_diverged_has_no_slots_and_learns_from_one_that_did_not(members):
    owners = tuple(r for r in plans.split(8, [f"w{i}" for i in range(len(members))]) if r.end > r.first)
    entries = [
        entry(f"w{i}", held, current=current, waiting=not current, owners=owners if held == 6 else (),
              chain=100 * held + chain, weights=weights, vouched=vouched, before=before)
        for i, (held, current, chain, weights, vouched, before) in enumerate(members)
    ]  # fmt: skip
    try:
        d = decide(entries, 8, 3)
    except Diverged:
        return
    wrong = {w.worker for w in d.diverged}
    assert not wrong & d.current
    assert not wrong & {donor for _, donor in d.learners}
    assert wrong <= dict(d.learners).keys()
    if d.ask or d.leader:
        assert not d.owners
        return
    furthest = [e for e in entries if e.worker in d.current and e.held == d.furthest]
    assert len({e.chain for e in furthest}) <= 1
    assert len({e.weights for e in furthest if e.weights}) <= 1
    assert plans.covers(d.owners, 8)
    if any(e.owners for e in furthest):
        assert not wrong & {r.worker for r in d.owners}


def test_entries_survive_the_wire():
    plan = Plan(4, 1, ranges("a:0-6 b:6-8"))
    e = entry("a", 6, owners=ranges("a:0-8"), computed=(1, 2), plan=plan, digest=2**63 + 1)
    from reknit.core import wire

    assert roll_call.entry_from_plain(wire.unpack(wire.pack(roll_call.entry_to_plain(e)))) == e


@given(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1, max_size=6), st.data())
def test_settle_never_gives_a_leaver_slots(ring, data):
    slots = data.draw(st.integers(1, 12))
    owners = tuple(r for r in plans.split(slots, ring) if r.end > r.first)
    leaving = frozenset(data.draw(st.lists(st.sampled_from(ring), unique=True)))
    settled = control.settle(
        control.Wishes(leaving=leaving), owners, slots, generation=1, ring=ring, current=frozenset(ring)
    )
    if settled.stop:
        assert leaving >= set(ring)
    else:
        assert plans.covers(settled.owners, slots)
        assert not leaving & {r.worker for r in settled.owners}


def test_settle_takes_a_fitting_plan_only():
    owners = ranges("a:0-4 b:4-8")
    args = {"generation": 3, "ring": ["a", "b", "c"], "current": {"a", "b"}}
    good = Plan(3, 2, ranges("a:0-2 b:2-5 c:5-8"))
    assert control.settle(control.Wishes(plan=good), owners, 8, **args).owners == good.ranges
    for bad in (
        Plan(2, 9, good.ranges),
        Plan(3, 2, ranges("a:0-2 b:2-5")),
        Plan(3, 2, ranges("a:0-2 x:2-8")),
        Plan(3, 2, ranges("b:0-4 a:4-8")),
    ):
        assert control.settle(control.Wishes(plan=bad), owners, 8, **args).owners == owners


@given(st.integers(-1, 5), st.integers(-1, 5), st.text("xy", max_size=2), st.text("xy", max_size=2))
def test_merge_is_commutative(l1, l2, c1, c2):
    a = control.Wishes(Plan(1, 1, ()), frozenset("p"), c1, l1)
    b = control.Wishes(Plan(1, 2, ()), frozenset("q"), c2, l2)
    assert control.merge(a, b) == control.merge(b, a)
    assert control.merge(a, b).plan == b.plan


def test_control_survives_the_wire_and_garbage_is_named():
    from reknit.core.errors import WireError

    w = control.Wishes(Plan(1, 1, ranges("a:0-8")), frozenset("ab"), "ck", 7)
    s = control.Settled(ranges("a:0-8"), frozenset("b"), "ck", 7, False)
    assert control.decode(control.encode(w)) == w
    assert control.decode(control.encode(s)) == s
    for garbage in (b"", b"\xc1", b"\x93\x01\x02\x03", control.encode(w)[:-1]):
        with pytest.raises(WireError):
            control.decode(garbage)
