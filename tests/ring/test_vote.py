"""Who is right when members hold different bits: tables and properties."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reknit.worker.ring.vote import Ballot, Diverged, Wrong, minority, weigh


def ballots(text: str) -> list[Ballot]:
    """`a=1 b=2~ c=3!1 d=0`: worker and digest; `~`: has it from a peer (not vouched), `!`: what it had before."""
    found = []
    for word in text.split():
        worker, _, said = word.partition("=")
        now, _, before = said.replace("~", "").partition("!")
        found.append(Ballot(worker, int(now), vouched="~" not in said, before=int(before or 0)))
    return found


@pytest.mark.parametrize(
    ("said", "right", "wrong"),
    [
        ("a=1 b=1 c=1", 1, ""),
        ("a=1 b=1 c=2", 1, "c"),
        ("a=2 b=1 c=1", 1, "a"),
        ("a=1 b=1 c=1 d=2 e=3", 1, "d e"),
        ("a=1 b=1 c=0", 1, ""),  # nobody differs: whoever has not told is compared later
        ("a=0 b=0", 0, ""),
        ("a=1!2 b=2", 2, "a"),  # two workers: the one whose own bits changed is wrong
        ("a=1 b=2!1", 1, "b"),
        ("a=1!2 b=1", 0, None),  # one had others before, and nobody has those now
        ("a=1!2 b=1 c=1", 1, ""),  # two have the same bits of their own: it was mistaken
        ("a=1!2 b=1~", 0, None),
        ("a=1!3 b=2", 0, None),  # two faults at once: what one had before is not what the other has
        ("a=1!2", 0, None),
        ("a=1!2 b=2 c=2~", 2, "a"),
        ("a=1!2 c=1~ b=2", 2, "a c"),  # a copy of the doubtful one is as wrong, and no witness for it
        ("a=1 b=1 c=2~ d=2~", 1, "c d"),  # two copies of one state are one witness
        ("a=1!3 b=2!3", 0, None),  # both doubt: nobody can tell
        ("a=2!3 b=2!3 c=2!3", 2, ""),  # a script that changes weights in forward
        ("a=2!3 b=2!3 c=1", 2, "c"),
        ("a=1 b=2", 0, None),
        ("a=1 b=2 c=3", 0, None),
        ("a=1 b=1 c=2 d=2", 0, None),
        ("a=1 b=2 c=1~", 0, None),  # c learned from a: a and c are one witness, b the other
        ("a=1 b=2~", 0, None),  # who is wrong, the learner or its only teacher?
        ("a=1 b=2~ c=2~", 0, None),
    ],
)
def test_table(said, right, wrong):
    if wrong is None:
        with pytest.raises(Diverged, match="no majority"):
            weigh("weights", "in step 7", ballots(said))
        assert minority("weights", "in step 7", ballots(said)) == ()
        return
    verdict = weigh("weights", "in step 7", ballots(said))
    assert (verdict.right, " ".join(w.worker for w in verdict.wrong), verdict.ask) == (right, wrong, ())
    assert all(w.right == right and w.what == "weights" for w in verdict.wrong)


@pytest.mark.parametrize(
    ("said", "ask"),
    [
        ("a=1 b=2 c=0", "c"),
        ("a=1 b=2 c=0~", "c"),
        ("a=1 b=1 c=2 d=0", "d"),  # two of four are no majority yet
        ("a=1 b=0 c=2 d=0", "b d"),
        ("a=1!2 b=0 c=0~", "b c"),
        ("a=1!2 b=2 c=0", "c"),
    ],
)
def test_who_has_not_told_is_asked_when_it_matters(said, ask):
    verdict = weigh("weights", "in step 7", ballots(said))
    assert (" ".join(verdict.ask), verdict.right, verdict.wrong) == (ask, 0, ())


def test_nobody_is_asked_who_cannot_turn_it():
    assert weigh("weights", "", ballots("a=1 b=1 c=1 d=2 e=0")).wrong == (Wrong("d", "weights", 2, 1, "majority"),)


def test_all_are_named_when_nobody_can_tell():
    with pytest.raises(Diverged, match=r"in step 7 .*a 0000000000000001, b 0000000000000002"):
        weigh("weights", "in step 7", ballots("a=1 b=2"))


def test_it_is_said_how_it_is_known():
    (wrong,) = weigh("weights", "", ballots("a=1!2 b=2")).wrong
    assert wrong.words(7) == "a found its own weights changed in step 7"
    (wrong,) = weigh("weights", "", ballots("a=1 b=2!3 c=2!3")).wrong
    assert wrong.by == "majority"
    (wrong,) = weigh("result", "", ballots("a=1 b=2 c=1")).wrong
    assert wrong.words(7) == "b held another result in step 7 than the majority"


def test_what_most_doubt_at_once_is_the_scripts_doing():
    assert weigh("weights", "", ballots("a=1!2 b=1!2")).void
    assert weigh("weights", "", ballots("a=1!2 b=1!2 c=1")).void
    assert not weigh("weights", "", ballots("a=1!2 b=1 c=1")).void
    with pytest.raises(Diverged):
        weigh("weights", "", ballots("a=1!3 b=2!3 c=4"))  # two with other bits each: that is no script
    assert not weigh("weights", "", ballots("a=1 b=1")).void


anybody = st.lists(
    st.builds(Ballot, st.uuids().map(str), st.integers(0, 3), st.booleans(), st.sampled_from([0, 0, 1, 2])),
    min_size=1,
    max_size=8,
)


@given(anybody, st.randoms())
def test_the_order_of_the_members_does_not_matter(members, rng):
    def told(some):
        try:
            verdict = weigh("weights", "", some)
        except Diverged:
            return "nobody can tell"
        return verdict.right, set(verdict.wrong), set(verdict.ask)

    shuffled = list(members)
    rng.shuffle(shuffled)
    assert told(members) == told(shuffled)


@given(anybody)
def test_a_verdict_names_whoever_differs_and_leaves_somebody(members):
    try:
        verdict = weigh("weights", "", members)
    except Diverged:
        assert len({b.digest for b in members if b.digest}) > 1 or any(b.before for b in members)
        return
    if verdict.ask:
        silent = {b.worker for b in members if not b.digest}
        assert set(verdict.ask) <= silent
        return
    assert {w.worker for w in verdict.wrong} == {b.worker for b in members if b.digest not in (0, verdict.right)}
    told = [b for b in members if b.digest]
    assert not told or any(b.digest == verdict.right for b in told)


@given(st.integers(2, 9), st.data())
def test_fewer_than_half_of_the_witnesses_never_win(size, data):
    """Whatever the wrong ones say, and whoever learned from them: the right digest wins or nobody does."""
    wrong_ones = data.draw(st.integers(1, (size - 1) // 2)) if size > 2 else 0
    assume(wrong_ones)
    members = [Ballot(f"r{i}", 1) for i in range(size - wrong_ones)]
    members += [Ballot(f"w{i}", data.draw(st.integers(2, 4))) for i in range(wrong_ones)]
    copies = data.draw(st.lists(st.sampled_from([m.digest for m in members]), max_size=6))
    members += [Ballot(f"c{i}", digest, vouched=False) for i, digest in enumerate(copies)]
    silent = data.draw(st.lists(st.sampled_from(members), max_size=3, unique=True))
    members = [Ballot(b.worker, 0, b.vouched) if b in silent else b for b in members]
    try:
        verdict = weigh("weights", "", members)
    except Diverged:
        raise AssertionError("the honest are more than half") from None
    if verdict.ask:
        assert silent
    elif verdict.right:
        told = {b.digest for b in members if b.digest}
        assert verdict.right == 1 or len(told) == 1


@given(anybody)
def test_asking_ends(members):
    """Once all that are asked have told, nobody is asked again."""
    try:
        verdict = weigh("weights", "", members)
        if verdict.ask:
            told = [Ballot(b.worker, b.digest or 1, b.vouched, b.before) for b in members]
            assert weigh("weights", "", told).ask == ()
    except Diverged:
        pass
