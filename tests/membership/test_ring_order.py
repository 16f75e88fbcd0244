"""Ring order and roles: tables, and properties over random worlds."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reknit.core.events import Member
from reknit.services.membership.ring_order import first_order, natural, neighbours, next_order, route_round
from reknit.services.membership.view import Worker


def worker(name: str, node: str = "") -> Worker:
    return Worker(worker=name, incarnation=1, node=node or name.partition("-")[0], pid=1, address=f"h:{name}")


def world(text: str) -> tuple[Member, ...]:
    """`a b (c)`: brackets are spares."""
    return tuple(
        worker(name.strip("()")).member("spare" if name.startswith("(") else "active") for name in text.split()
    )


def text(members: tuple[Member, ...]) -> str:
    return " ".join(m.worker if m.role == "active" else f"({m.worker})" for m in members)


def test_names_are_sorted_as_people_count() -> None:
    assert sorted(["n10-1", "n2-0", "n2-10", "n2-9"], key=natural) == ["n2-0", "n2-9", "n2-10", "n10-1"]


def test_a_ring_begins_with_the_workers_of_one_node_side_by_side() -> None:
    arrivals = ["n1-1", "n0-1", "n10-0", "n1-0", "n0-0"]
    assert text(first_order([worker(w) for w in arrivals], 9)) == "n0-0 n0-1 n1-0 n1-1 n10-0"


def test_those_above_the_maximum_are_spares_at_the_tail() -> None:
    assert text(first_order([worker(w) for w in "abcd"], 2)) == "a b (c) (d)"


ROWS = [
    # before, gone, joiners, most active, current, after
    ("a b c", "", "", 9, "abc", "a b c"),
    ("a b c", "b", "", 9, "abc", "a c"),
    ("a b c d", "a d", "", 9, "abcd", "b c"),
    ("a b c", "a b c", "", 9, "abc", ""),
    # joiners: to the tail, before the spares when active
    ("a b", "", "x y", 9, "ab", "a b x y"),
    ("a b (c)", "", "x", 2, "abc", "a b (c) (x)"),
    ("a b (c)", "", "x", 4, "abc", "a b c x"),
    ("a b", "", "x y", 3, "ab", "a b x (y)"),
    # a spare takes the dead active's place
    ("a b c (s)", "b", "", 3, "abcs", "a s c"),
    ("a b c (s)", "a", "", 3, "abcs", "s b c"),
    ("a b c (s) (t)", "b c", "", 3, "abcst", "a s t"),
    ("a b c (s)", "b c", "", 3, "abcs", "a s"),
    ("a b c (s)", "b c", "x y", 3, "abcs", "a s x (y)"),
    # current spares first
    ("a b (s) (t)", "b", "", 2, "abt", "a t (s)"),
    ("a b (s) (t)", "b", "", 2, "ab", "a s (t)"),
    # a dead spare is nobody's loss
    ("a b (s) (t)", "s", "", 2, "abst", "a b (t)"),
    # scaled down: nobody is demoted, no spare promoted
    ("a b c (s)", "c", "", 1, "abcs", "a b (s)"),
    # scaled up: spares are promoted in order
    ("a (s) (t) (u)", "", "", 3, "astu", "a s t (u)"),
]


@pytest.mark.parametrize(("before", "gone", "joiners", "most", "current", "after"), ROWS)
def test_the_next_order(before: str, gone: str, joiners: str, most: int, current: str, after: str) -> None:
    found = next_order(world(before), gone.split(), [worker(w) for w in joiners.split()], most, set(current))
    assert text(found) == after


def test_a_spare_of_the_same_node_is_preferred() -> None:
    members = (*world("a-0 b-0"), worker("c-1").member("spare"), worker("b-1").member("spare"))
    assert text(next_order(members, {"b-0"}, [], 2, {"c-1", "b-1"})) == "a-0 b-1 (c-1)"


@pytest.mark.parametrize(
    ("members", "bad", "after"),
    [
        ("a b c d", {("a", "b"): 1}, "a b c d"),
        ("a b c d", {("a", "c"): 5}, "a b c d"),
        ("a b c d", {("a", "b"): 2}, "a c b d"),
        ("a b c", {("a", "b"): 2}, "c b a"),
        ("a b", {("a", "b"): 3}, "b a"),
        ("a b (s) (t)", {("a", "b"): 2}, "b a (t) (s)"),
        # no order without bad links: what broke long ago, and less often, may be whole again
        ("b a c d", {("b", "c"): 2, ("a", "b"): 3}, "b c a d"),
        ("b a c d", {("b", "c"): 2, ("a", "b"): 2}, "d c a b"),
    ],
)
def test_a_link_that_keeps_breaking_is_routed_round(members: str, bad: dict[tuple[str, str], int], after: str) -> None:
    order, said = route_round(world(members), bad)
    assert text(order) == after
    assert bool(said) == (after != members)


def test_several_bad_links_are_routed_round_together() -> None:
    bad = {("a", "b"): 2, ("c", "d"): 2, ("e", "f"): 4}
    order, said = route_round(world("a b c d e f"), bad)
    assert not neighbours(order) & set(bad)
    assert "a–b and c–d and e–f" in said


names = st.lists(st.sampled_from([f"n{i}-{j}" for i in range(5) for j in range(4)]), unique=True, max_size=14)


@given(names, names, st.integers(0, 12), st.data())
def test_properties_of_the_next_order(present: list[str], coming: list[str], most: int, data: st.DataObject) -> None:
    coming = [c for c in coming if c not in present]
    split = data.draw(st.integers(0, len(present)))
    before = (
        *(worker(w).member("active") for w in present[:split]),
        *(worker(w).member("spare") for w in present[split:]),
    )
    gone = data.draw(st.sets(st.sampled_from(present))) if present else set()
    current = data.draw(st.sets(st.sampled_from(present))) if present else set()
    after = next_order(before, gone, [worker(c) for c in coming], most, current)
    found = [m.worker for m in after]
    assert sorted(found) == sorted((set(present) - gone) | set(coming)), "exactly those that stay or come"
    roles = [m.role for m in after]
    assert roles == sorted(roles), "actives stand before spares"
    stay = [m.worker for m in before if m.role == "active" and m.worker not in gone]
    assert [w for w in found if w in stay] == stay, "survivors keep their relative order"
    assert roles.count("active") == max(len(stay), min(most, len(found))), "as many active as there may be"
    again = next_order(after, (), [], most, current)
    assert again == after, "nothing to do means nothing done"


@given(
    st.permutations("abcdefg"), st.sets(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("abcdefg")), max_size=2)
)
def test_routing_round_keeps_the_members_and_avoids_what_it_says(order: list[str], bad: set[tuple[str, str]]) -> None:
    pairs = {(min(p), max(p)): 2 for p in bad if p[0] != p[1]}
    assume(pairs)
    members = world(" ".join(order))
    found, said = route_round(members, pairs)
    assert sorted(m.worker for m in found) == sorted(order)
    if "no longer neighbours" in said:
        assert not neighbours(found) & set(pairs)
    if not said:
        assert found == members
