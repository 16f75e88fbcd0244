"""Ring order and roles: tables, and properties over random worlds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reknit.core.events import Member
from reknit.services.membership.ring_order import first_order, natural, neighbours, next_order, route_round
from reknit.services.membership.topology import LEVELS, Topology, rounded
from reknit.services.membership.view import Node, Worker


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


# ----------------------------------------------------------------------------------------------------------- topology


def town(text: str, rtt: dict[str, dict[str, float]] | None = None) -> Topology:
    """`a@h1/r1 b@h1/r1 c@h2`: nodes at hosts, in racks; `/z1.r1` is a rack in a zone."""
    nodes = {}
    for word in text.split():
        name, _, rest = word.partition("@")
        host, _, where = rest.partition("/")
        zone, _, rack = where.rpartition(".")
        labels = {k: v for k, v in (("zone", zone), ("rack", rack)) if v}
        nodes[name] = Node(name, 1, host=host, labels=labels)
    return Topology(nodes, rtt or {})


PLACES = [
    # nodes in order of arrival, round trips, ring order
    ("a b c", {}, "a b c"),
    ("n10 n9 n1", {}, "n1 n9 n10"),
    # one host's nodes in one piece
    ("a@h1 b@h2 c@h1 d@h2", {}, "a c b d"),
    # a rack in one piece, in it a host
    ("a@h1/r1 b@h2/r2 c@h3/r1 d@h1/r1 e@h2/r2", {}, "a d c b e"),
    # racks of one zone side by side; a rack's name counts inside its zone only
    ("a@1/z1.r1 b@2/z2.r1 c@3/z1.r2 d@4/z1.r1 e@5/z2.r1", {}, "a d c b e"),
    # a node without labels stands with those that have none
    ("a@1/r1 b@2 c@3/r1 d@4", {}, "a c b d"),
    # round trips order what labels leave open
    ("a b c d", {"a": {"c": 0.1, "b": 9.0, "d": 9.0}, "b": {"d": 0.1, "c": 9.0}, "c": {"d": 9.0}}, "a c b d"),
    # ... less than a factor of two says nothing
    ("a b c d", {"a": {"b": 3.9, "c": 2.1, "d": 2.5}, "b": {"c": 3.0, "d": 2.2}, "c": {"d": 3.9}}, "a b c d"),
    # ... and never tear a rack apart
    ("a@1/r1 b@2/r2 c@3/r1 d@4/r2", {"a": {"b": 0.1, "c": 9.0}, "c": {"d": 0.1}, "b": {"d": 9.0}}, "a c b d"),
    # the racks themselves: r1 and r3 are near
    ("a@1/r1 b@2/r2 c@3/r3 d@4/r4", {"a": {"c": 1.0, "b": 20.0, "d": 20.0}, "b": {"d": 1.0}}, "a c b d"),
    # nonsense is not used
    ("a b c d", {"a": {"c": float("nan"), "d": -1.0}, "b": {"d": float("inf")}}, "a b c d"),
    # one pair known: what is not known counts as usual
    ("a b c", {"a": {"c": 0.2}}, "a b c"),
]


@pytest.mark.parametrize(("nodes", "rtt", "order"), PLACES)
def test_nodes_in_ring_order(nodes: str, rtt: dict[str, dict[str, float]], order: str) -> None:
    topology = town(nodes, rtt)
    assert " ".join(topology.order(topology.nodes)) == order
    assert " ".join(topology.order(reversed(topology.nodes))) == order, "the order of arrival says nothing"


def test_a_ring_begins_host_by_host() -> None:
    topology = town("a@h1 b@h2 c@h1")
    arrivals = [worker(w) for w in ("b-0", "c-0", "a-1", "a-0", "b-1")]
    assert text(first_order(arrivals, 9, topology)) == "a-0 a-1 c-0 b-0 b-1"


@pytest.mark.parametrize(("ms", "to"), [(0.0, 0.5), (0.5, 0.5), (0.51, 1.0), (1.0, 1.0), (3.0, 4.0), (100.0, 128.0)])
def test_round_trips_are_rounded_up(ms: float, to: float) -> None:
    assert rounded(ms) == to


BESIDE = [
    # places, before, gone, joiners, most active, after
    ("a@h1 b@h2", "a-0 a-1 b-0", "a-1", "a-1", 9, "a-0 a-1 b-0"),
    ("a@h1 b@h2", "a-0 b-0", "", "a-1 b-1", 9, "a-0 a-1 b-0 b-1"),
    # a node of its own host before one of its rack, that before the tail
    ("a@h1/r1 b@h2/r1 c@h3/r2 d@h1/r1", "a-0 b-0 c-0", "", "d-0", 9, "a-0 d-0 b-0 c-0"),
    ("a@h1/r1 b@h2/r1 c@h3/r2 d@h4/r1", "a-0 b-0 c-0", "", "d-0", 9, "a-0 b-0 d-0 c-0"),
    ("a@h1/r1 b@h2/r1 c@h3/r2 d@h4/r3", "a-0 b-0 c-0", "", "d-0", 9, "a-0 b-0 c-0 d-0"),
    # several of one new node find each other
    ("a@h1 b@h2 c@h3", "a-0 b-0", "", "c-0 a-1 c-1", 9, "a-0 a-1 b-0 c-0 c-1"),
    # spares among spares
    ("a@h1 b@h2", "a-0 (a-1) (b-0)", "", "a-2", 1, "a-0 (a-1) (a-2) (b-0)"),
    # a spare that is promoted is nobody's neighbour yet: it goes where it is near
    ("a@h1 b@h2", "a-0 b-0 (a-1)", "", "", 3, "a-0 a-1 b-0"),
    # the nearest spare takes the place: here that of the rack
    ("a@h1/r1 b@h2/r2 s@h3/r2 t@h4/r1", "a-0 b-0 (s-0) (t-0)", "a-0", "", 2, "t-0 b-0 (s-0)"),
    # survivors stay where they are, even if they stand badly
    ("a@h1 b@h2", "a-0 b-0 a-1 b-1", "", "a-2", 9, "a-0 b-0 a-1 a-2 b-1"),
]


@pytest.mark.parametrize(("places", "before", "gone", "joiners", "most", "after"), BESIDE)
def test_joiners_stand_beside_their_own(
    places: str, before: str, gone: str, joiners: str, most: int, after: str
) -> None:
    coming = [worker(w) for w in joiners.split()]
    present = [w.strip("()") for w in before.split()]
    found = next_order(world(before), gone.split(), coming, most, set(present), topology=town(places))
    assert text(found) == after


labels = st.dictionaries(st.sampled_from(LEVELS), st.sampled_from(["1", "2", "3"]))
towns = st.dictionaries(
    st.sampled_from([f"n{i}" for i in range(9)]), st.tuples(st.sampled_from(["", "h1", "h2", "h3"]), labels), min_size=1
).map(lambda nodes: {name: Node(name, 1, host=host, labels=said) for name, (host, said) in nodes.items()})
times = st.dictionaries(
    st.sampled_from([f"n{i}" for i in range(9)]),
    st.dictionaries(st.sampled_from([f"n{i}" for i in range(9)]), st.floats(0, 1e4)),
)


@given(towns, times)
def test_every_place_is_one_piece_of_the_ring(nodes: dict[str, Node], rtt: dict[str, dict[str, float]]) -> None:
    topology = Topology(nodes, rtt)
    order = topology.order(nodes)
    assert sorted(order) == sorted(nodes)
    for depth in range(1, len(LEVELS) + 2):
        places = [topology.place(n)[:depth] for n in order]
        changes = sum(a != b for a, b in itertools.pairwise(places))
        assert changes == len(set(places)) - 1, depth


@given(times)
def test_round_trips_never_make_the_ring_longer(rtt: dict[str, dict[str, float]]) -> None:
    names = [f"n{i}" for i in range(9)]
    apart: dict[tuple[str, str], float] = {}
    for a, row in rtt.items():
        for b, ms in row.items():
            if a != b:
                low, high = sorted((a, b))
                apart[low, high] = min(rounded(ms), apart.get((low, high), float("inf")))
    usual = sorted(apart.values())
    assume(usual)

    def length(order: list[str]) -> float:
        half = len(usual) // 2
        median = usual[half] if len(usual) % 2 else (usual[half - 1] + usual[half]) / 2
        links = zip(order, order[1:] + order[:1], strict=True)
        return sum(apart.get((min(a, b), max(a, b)), median) for a, b in links)

    assert length(Topology({}, rtt).order(names)) <= length(names)


@given(towns, st.data())
def test_a_joiner_splits_no_pair_that_is_nearer_than_itself(nodes: dict[str, Node], data: st.DataObject) -> None:
    topology = Topology(nodes)
    everybody = [f"{n}-{i}" for n in nodes for i in range(2)]
    present = data.draw(st.lists(st.sampled_from(everybody), unique=True, min_size=2))
    coming = data.draw(st.sampled_from([w for w in everybody if w not in present] or ["x-0"]))
    before = [w.member("active") for w in map(worker, present)]
    after = [m.worker for m in next_order(before, (), [worker(coming)], 99, set(present), topology=topology)]
    assert [w for w in after if w != coming] == present, "survivors keep their places"
    at = after.index(coming)
    assert at > 0, "slot 0 stays where it is"
    node = {w: w.partition("-")[0] for w in after}
    left = topology.nearness(node[coming], node[after[at - 1]])
    assert left == max(topology.nearness(node[coming], node[w]) for w in present)
    if at + 1 < len(after):
        assert topology.nearness(node[after[at - 1]], node[after[at + 1]]) < left
