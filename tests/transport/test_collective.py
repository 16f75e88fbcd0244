"""One step over a group, as one worker sees it: what it does when the group fails, or says something impossible."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from reknit.core.events import Range
from reknit.worker.ring.control import Settled, Wishes
from reknit.worker.ring.link import Link, LinkBroken
from reknit.worker.ring.pieces import Section, Shape
from reknit.worker.ring.reduction import Reduction, Route
from reknit.worker.ring.vote import Diverged
from reknit.worker.transport import collective
from reknit.worker.transport.bounds import Bounds
from reknit.worker.transport.buckets import lay_out, whole_sections
from reknit.worker.transport.collective import Collective
from reknit.worker.transport.group import CollectiveFailed
from reknit.worker.transport.making import Unusable
from reknit.worker.transport.point import HostPoint
from support import exact
from support.pairs import pair

SHAPE = Shape((Section("f4", 0, 400), Section("f8", 400, 424), Section("raw", 424, 440)))
OWNERS = (Range(worker="a", first=0, end=1), Range(worker="b", first=1, end=3))
SLOTS = 3


class Shared:
    """A group of threads: adds up in this process; fails as it is told."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls: dict[int, list[tuple[torch.Tensor, Callable[[], None], Sum]]] = {}
        self.spoil: Callable[[torch.Tensor], None] = lambda tensor: None
        self.lock = threading.Lock()

    def add(self, number: int, work: Sum, tensor: torch.Tensor, wake: Callable[[], None]) -> None:
        with self.lock:
            here = self.calls.setdefault(number, [])
            here.append((tensor, wake, work))
            if len(here) < self.size:
                return
            total = sum(t.clone() for t, _, _ in here)
            self.spoil(total)
            for t, ring, done in here:
                t.copy_(total)
                done.done = True
                ring()


class Sum:
    def __init__(self) -> None:
        self.done = False

    def check(self) -> None:
        pass


class Member:
    """A member's handle on the shared group."""

    pace = 0.05

    def __init__(self, shared: Shared) -> None:
        self.shared, self.count, self.was_closed = shared, 0, False

    def start(self, tensor: torch.Tensor, wake: Callable[[], None]) -> Sum:
        self.count += 1
        work = Sum()
        self.shared.add(self.count, work, tensor, wake)
        return work

    def close(self) -> None:
        self.was_closed = True

    def closed(self, seconds: float) -> bool:
        self.was_closed = True
        return True


class Two:
    """Two workers, their links, and a transport each."""

    def __init__(self, meet: Callable[..., object] | None = None) -> None:
        self.shared = Shared(2)
        self.members = [Member(self.shared), Member(self.shared)]
        self.bounds = [Bounds(SHAPE, whole_sections(SHAPE)) for _ in range(2)]
        (a1, b1), (b2, a2) = pair(), pair()
        self.links = [
            (Link(a2, "previous", 1, lambda: None), Link(a1, "next", 1, lambda: None)),
            (Link(b1, "previous", 1, lambda: None), Link(b2, "next", 1, lambda: None)),
        ]
        self.slots = [self.slot(number) for number in range(SLOTS)]
        self.transports = [
            Collective(
                HostPoint(lay_out(SHAPE, whole_sections(SHAPE)), SLOTS),
                self.bounds[rank],
                meet or (lambda rank, size, **_: self.members[rank]),
                lambda: False,
            )
            for rank in range(2)
        ]

    @staticmethod
    def slot(number: int) -> np.ndarray:
        rng = np.random.default_rng(number)
        made = np.zeros(SHAPE.nbytes + 8, np.uint8)
        made[:400].view(np.float32)[:] = rng.standard_normal(100)
        made[400:424].view(np.float64)[:] = rng.standard_normal(3)
        made[424:440] = number + 1
        return made

    def work(self, rank: int, step: int = 5, own=None) -> Reduction:
        mine = own if own is not None else (self.slots[:1] if rank == 0 else self.slots[1:])
        return Reduction(
            step=step,
            slots=SLOTS,
            cut=self.bounds[rank].shape.pieces(),
            where=Route(place=rank, last=1, size=2, before=rank, own=rank + 1),
            previous=self.links[rank][0],
            following=self.links[rank][1],
            result=self.bounds[rank].shape.empty(),
            chain=77,
            own=lambda: mine,
            wishes=lambda: Wishes(chain=77),
            settle=lambda wishes: Settled(owners=OWNERS, chain=wishes.chain),
        )

    def reduce(self, works: list[Reduction]) -> list[object]:
        """What each returned or raised."""
        answers: list[object] = [None, None]

        def one(rank: int) -> None:
            try:
                answers[rank] = self.transports[rank].reduce(works[rank])
            except Exception as error:  # noqa: BLE001 - the test looks at it
                answers[rank] = error
                self.links[rank][1].abort()

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        return answers

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        for links in self.links:
            for link in links:
                link.close()


@pytest.fixture
def two():
    made = Two()
    yield made
    made.close()


def test_the_sum_the_bounds_and_the_chain(two):
    works = [two.work(0), two.work(1)]
    first, second = two.reduce(works)
    assert first == second
    assert np.array_equal(works[0].result, works[1].result)
    wanted, following = exact.add_up(SHAPE, whole_sections(SHAPE), two.slots, [-(1 << 30)] * 2, SLOTS)
    assert np.array_equal(works[0].result[: SHAPE.nbytes], wanted)
    for bounds in two.bounds:
        bounds.take(works[0].result)
        assert bounds.exponents.tolist() == following
    works = [two.work(0, 6), two.work(1, 6)]
    two.reduce(works)
    wanted, _ = exact.add_up(SHAPE, whole_sections(SHAPE), two.slots, following, SLOTS)
    assert np.array_equal(works[1].result[: SHAPE.nbytes], wanted)


def test_one_without_slots_gets_the_bounds_from_the_others(two):
    """As a learner, whose own are not the run's."""
    two.bounds[1].exponents = np.array([100, 100], np.int32)
    two.bounds[0].exponents = np.array([3, 5], np.int32)
    works = [two.work(0, own=two.slots), two.work(1, own=[])]
    works[0].where = Route(0, 0, 2, 0, 3)
    works[1].where = Route(1, 0, 2, 3, 0)
    first, second = two.reduce(works)
    assert first == second
    wanted, _ = exact.add_up(SHAPE, whole_sections(SHAPE), two.slots, [3, 5], SLOTS)
    assert np.array_equal(works[1].result[: SHAPE.nbytes], wanted)


def test_different_bounds_are_different_states(two):
    two.bounds[1].exponents = np.array([3, 4], np.int32)
    answers = two.reduce([two.work(0), two.work(1)])
    assert any(isinstance(a, Diverged) and "different bounds before step 5" in str(a) for a in answers)
    assert all(isinstance(a, Diverged | LinkBroken) for a in answers)


def test_a_sum_over_other_slots_is_never_taken(two):
    two.shared.spoil = lambda total: total.sub_(1)
    answers = two.reduce([two.work(0), two.work(1)])
    assert all(isinstance(a, LinkBroken) for a in answers), answers
    assert any("over 2 slots, not 3" in str(a) for a in answers), answers
    assert all(m.was_closed for m in two.members)


def test_a_sum_that_arrives_differently_is_found_by_the_chain(two):
    """One bit of one worker's sum is wrong: the control piece carries what the result must hash to."""
    right = two.transports[0]._point.write

    def wrong(result, bounds, first, last):
        right(result, bounds, first, last)
        result[4] ^= 1

    two.transports[0]._point.write = wrong
    answers = two.reduce([two.work(0), two.work(1)])
    assert any(isinstance(a, LinkBroken) and "diverged" in str(a) for a in answers), answers


def test_a_group_that_fails_while_all_links_hold_is_given_up_in_the_end(monkeypatch):
    monkeypatch.setattr(collective, "EXPLAIN", 0.05)

    def meet(rank, size, **_):
        raise CollectiveFailed("nobody answers")

    two = Two(meet)
    try:
        transport = two.transports[0]
        for _ in range(collective.ATTEMPTS - 1):
            with pytest.raises(LinkBroken, match="nobody answers"):
                transport.reduce(two.work(0))
        with pytest.raises(Unusable, match="3 collectives in a row") as caught:
            transport.reduce(two.work(0))
        assert "firewall" in caught.value.hint
    finally:
        two.close()


def test_a_group_that_fails_because_a_neighbour_is_gone_names_the_neighbour(monkeypatch):
    monkeypatch.setattr(collective, "EXPLAIN", 20.0)
    started = threading.Event()

    def meet(rank, size, **_):
        started.set()
        raise CollectiveFailed("connection closed by peer")

    two = Two(meet)
    try:
        threading.Thread(target=lambda: (started.wait(), two.links[1][0].close()), daemon=True).start()
        for _ in range(1):
            with pytest.raises(LinkBroken) as caught:
                two.transports[0].reduce(two.work(0))
        assert caught.value.side == "next"
    finally:
        two.close()
