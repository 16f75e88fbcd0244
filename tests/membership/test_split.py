"""A ring that is split: everybody lives and is heard, and no order of the ring avoids the links that cannot be made."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.core.events import Member, NodeHeld
from reknit.services.membership.linkage import Link, Linkage, links
from reknit.services.membership.ring_order import order_without
from reknit.services.membership.split import MOST_TRIES, TRIES, kept
from reknit.services.membership.view import Worker
from support.town import Town


def cut(one: Collection[str], other: Collection[str]) -> set[Link]:
    """All links between two groups, both ways."""
    return {link for a, b in itertools.product(one, other) for link in ((a, b), (b, a))}


def ring_of(*workers: str, min_nodes: int = 1) -> Town:
    town = Town(min_nodes=min_nodes, max_nodes=len(workers))
    town.learn = None  # the tests say when somebody has caught up
    town.begin(*workers)
    town.committed(3)
    town.run(2.0)
    return town


def play(town: Town, bad: Collection[Link], seconds: float) -> None:
    """The workers of each ring dial; whoever cannot reach its next one says so a moment later, else steps go on."""
    tried, end = -1, town.now + seconds
    while town.now < end:
        if town.world.generation != tried and town.world.status == "running":
            tried = town.world.generation
            failed = links(town.world.members) & set(bad)
            for a, b in sorted(failed):
                town.later(3.0, lambda a=a, b=b, g=tried: town.broken(a, b, g, "no answer", unmade=True))
            if not failed:
                town.committed(1000 + tried)
        town.run(0.05)


def test_two_halves_of_four_the_one_with_the_oldest_goes_on_and_the_others_are_put_out() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0")
    town.broken("b-0", "c-0")
    play(town, cut(["a-0", "b-0"], ["c-0", "d-0"]), 60.0)
    assert sorted(town.members) == ["a-0", "b-0"]
    assert town.world.apart == town.world.removed == ("c-0", "d-0")
    assert "no order of the ring avoids the links that cannot be made: c-0 and d-0 are put out" in town.world.reason
    assert {e.about for e in town.world.evidence} == {"c-0", "d-0"}
    assert all("cannot link to" in e.detail for e in town.world.evidence)
    assert town.world.restarts == 0
    assert TRIES < len(town.worlds) <= MOST_TRIES


def test_the_greater_part_goes_on() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0", "e-0")
    town.broken("b-0", "c-0")
    play(town, cut(["a-0", "b-0"], ["c-0", "d-0", "e-0"]), 90.0)
    assert sorted(town.members) == ["c-0", "d-0", "e-0"]


WORN = [[], [("a-0", "b-0")], [("c-0", "d-0")], [("a-0", "b-0"), ("c-0", "d-0")]]


@pytest.mark.parametrize("worn", WORN, ids=str)
@pytest.mark.parametrize("order", ["abcd", "acbd", "abdc"])
def test_two_go_on_whatever_broke_before(order: str, worn: list[Link]) -> None:
    """A link that broke now and then is better than none: halves that could link are found, not single members."""
    town = ring_of(*(f"{name}-0" for name in order))
    for a, b in worn * 2:
        town.broken(a, b)
        town.run(2.0)
        town.committed(town.world.generation + 3)
        town.run(1.0)
    bad = cut(["a-0", "b-0"], ["c-0", "d-0"])
    first = min(links(town.world.members) & bad)
    town.broken(*first)
    play(town, bad, 90.0)
    assert len(town.members) == 2
    assert not links(town.world.members) & bad


def test_a_death_in_the_middle_does_not_begin_the_tries_anew() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0", "e-0")
    bad = cut(["a-0", "b-0", "c-0"], ["d-0", "e-0"])
    town.broken(*min(links(town.world.members) & bad))
    play(town, bad, 9.0)
    assert len(town.members) == 5
    tried = town.houses[0].view.record.relinks
    assert tried >= 2
    town.kill("a-0")
    play(town, bad, 1.0)
    assert len(town.members) == 4
    assert town.houses[0].view.record.relinks == tried
    play(town, bad, 90.0)
    assert sorted(town.members) == ["b-0", "c-0"]


def test_one_pair_that_cannot_be_linked_in_a_ring_of_three() -> None:
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("a-0", "b-0")
    play(town, cut(["a-0"], ["b-0"]), 60.0)
    assert sorted(town.members) == ["a-0", "c-0"]


def test_of_two_the_older_goes_on() -> None:
    town = ring_of("a-0", "b-0")
    town.broken("a-0", "b-0")
    play(town, cut(["a-0"], ["b-0"]), 60.0)
    assert town.members == ["a-0"]


def test_nobody_is_put_out_while_an_order_can_be_linked() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0")
    town.broken("b-0", "c-0")
    play(town, cut(["b-0"], ["c-0"]) | {("d-0", "a-0")}, 60.0)
    assert len(town.members) == 4
    assert len(town.worlds) <= 4
    assert not links(town.world.members) & (cut(["b-0"], ["c-0"]) | {("d-0", "a-0")})


def test_nobody_is_put_out_if_the_others_could_not_go_on() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0", min_nodes=3)
    town.broken("b-0", "c-0")
    play(town, cut(["a-0", "b-0"], ["c-0", "d-0"]), 60.0)
    assert len(town.members) == 4
    assert all(not w.removed for w in town.worlds)
    play(town, (), 5.0)
    worlds = len(town.worlds)
    play(town, (), 5.0)
    assert len(town.worlds) == worlds


def test_a_short_cut_puts_nobody_out() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0")
    town.broken("b-0", "c-0")
    play(town, cut(["a-0", "b-0"], ["c-0", "d-0"]), 8.0)
    play(town, (), 10.0)
    assert len(town.members) == 4
    assert all(not w.removed for w in town.worlds)


def test_a_step_that_came_round_ends_the_count() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0")
    bad = cut(["a-0", "b-0"], ["c-0", "d-0"])
    for _ in range(3):  # three tries each: together more than enough
        town.broken("b-0", "c-0")
        play(town, bad, 9.0)
        town.run(4.0)
        play(town, (), 8.0)
    assert len(town.members) == 4


def test_links_that_are_made_and_break_put_nobody_out() -> None:
    town = ring_of("a-0", "b-0")
    for _ in range(MOST_TRIES + 2):
        before = len(town.worlds)
        town.broken("a-0", "b-0")
        town.until(lambda before=before: len(town.worlds) > before)
    assert len(town.members) == 2


def test_who_was_put_out_comes_back_once_it_has_caught_up() -> None:
    town = ring_of("a-0", "b-0", "c-0", "d-0")
    town.broken("b-0", "c-0")
    play(town, cut(["a-0", "b-0"], ["c-0", "d-0"]), 60.0)
    for worker in ("c-0", "d-0"):
        town.again(worker, incarnation=town.bodies[worker].incarnation + 1)
    town.run(30.0)
    assert len(town.members) == 2, "they learn beside the ring as everybody does"
    for worker in ("c-0", "d-0"):
        town.caught_up(worker)
    town.run(2.0)
    assert sorted(town.members) == ["a-0", "b-0", "c-0", "d-0"]
    assert town.world.planned


def test_who_comes_back_and_splits_the_ring_again_is_out_sooner_and_held_down_longer_each_time() -> None:
    """It reaches one of the two others, learns from that one, and cannot be linked with both."""
    bad = cut(["a-0"], ["b-0"])
    town = ring_of("a-0", "b-0", "c-0")
    town.broken("a-0", "b-0")
    outs, ins = [], []
    for _ in range(6):
        begin = town.now
        while "b-0" in town.members:
            play(town, bad, 0.1)
        outs.append(town.now - begin)
        town.again("b-0", incarnation=town.bodies["b-0"].incarnation + 1)  # as a worker does that was left out
        town.caught_up("b-0")
        begin = town.now
        while "b-0" not in town.members:
            play(town, bad, 0.1)
        ins.append(town.now - begin)
    assert outs[0] > 10.0
    assert max(outs[1:]) < 8.0
    assert max(ins[:3]) < 1.0
    assert ins[3:] == sorted(ins[3:])
    assert 4.0 < ins[3] < 7.0
    assert 18.0 < ins[5] < 22.0
    assert [e.cause for _, e, _ in town.log if isinstance(e, NodeHeld)] == ["flapping"] * 3
    play(town, (), 5.0)
    town.broken("a-0", "b-0")
    play(town, bad, 9.0)
    assert "b-0" in town.members, "since then it was in a whole ring"


def test_two_services_put_the_same_out() -> None:
    town = Town(houses=2, min_nodes=1, max_nodes=4)
    town.lag = 0.05
    town.begin("a-0", "b-0", "c-0", "d-0")
    town.run(2.0)
    town.broken("b-0", "c-0")
    play(town, cut(["a-0", "b-0"], ["c-0", "d-0"]), 60.0)
    assert sorted(town.members) == ["a-0", "b-0"]
    assert [w.generation for w in town.worlds] == list(range(1, len(town.worlds) + 1))


def test_many_in_two_halves_do_not_try_all_orders() -> None:
    names = [f"n{i}-0" for i in range(24)]
    town = ring_of(*names)
    town.broken("n11-0", "n12-0")
    play(town, cut(names[:12], names[12:]), 120.0)
    assert sorted(town.members) == sorted(names[:12])
    assert len(town.worlds) <= MOST_TRIES + 3


# ---------------------------------------------------------------------------------------------------- the pure parts


def members(names: str, spares: str = "") -> tuple[Member, ...]:
    return tuple(
        Worker(worker=n, incarnation=1, node=n, pid=1, address=n).member("spare" if n in spares else "active")
        for n in names + spares
    )


def first_order_by_trying(names: str, spares: str, bad: Collection[Link]) -> bool:
    """Is there any order at all? By trying them all."""
    return any(
        not links(members("".join(one), "".join(two))) & set(bad)
        for one in itertools.permutations(names)
        for two in itertools.permutations(spares)
    )


pairs = st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).filter(lambda p: p[0] != p[1])


@given(st.integers(1, 6), st.integers(0, 2), st.sets(pairs, max_size=24))
def test_an_order_is_found_if_there_is_one(size: int, spares: int, bad: set[Link]) -> None:
    names, waiting = "abcdef"[: max(1, size - spares)], "abcdef"[max(1, size - spares) : size]
    found = order_without(members(names, waiting), bad)
    assert (found is not None) == first_order_by_trying(names, waiting, bad)
    if found is not None:
        assert not links(found) & bad
        assert sorted(m.worker for m in found) == sorted(names + waiting)
        roles = [m.role for m in found]
        assert roles == sorted(roles), "actives stand before spares"
    if not bad:
        assert found == members(names, waiting), "nobody is moved without a reason"


@given(st.sets(pairs, max_size=30), st.sets(pairs, max_size=30), st.integers(0, 12), st.sets(st.sampled_from("abcdef")))
def test_who_goes_on_can_be_linked_and_has_the_state(
    unmade: set[Link], made: set[Link], tries: int, current: set[str]
) -> None:
    everybody = members("abcdef")
    workers = {
        m.worker: Worker(m.worker, 1, m.node, 1, m.address, seq=i, current=m.worker in current)
        for i, m in enumerate(everybody)
    }
    stay = kept(everybody, Linkage(frozenset(unmade), frozenset(made - unmade)), tries, workers)
    assert stay
    assert [m for m in everybody if m in stay] == list(stay)
    if tries < TRIES or not unmade:
        assert stay == everybody
    if stay != everybody:
        assert order_without(stay, unmade) is not None
        assert not current or current & {m.worker for m in stay}, "nobody has the state"


@pytest.mark.parametrize("size", [100, 1000])
def test_large_rings_are_searched_in_bounded_time(size: int) -> None:
    everybody = tuple(
        Worker(worker=f"w{i}", incarnation=1, node=f"w{i}", pid=1, address=f"w{i}").member("active")
        for i in range(size)
    )
    bad = {("w3", "w4"), ("w7", "w8"), (f"w{size - 1}", "w0")}
    found = order_without(everybody, bad)
    assert found is not None
    assert not links(found) & bad
    alone = {(f"w{i}", "w5") for i in range(size)}
    assert order_without(everybody, alone) is None
