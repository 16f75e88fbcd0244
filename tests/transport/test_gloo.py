"""A gloo group among real processes: sums, and what happens when a member dies or freezes at any point."""

from __future__ import annotations

import random
import signal
import time

import pytest

from support.members import Members

LARGE = 3_000_000


@pytest.fixture
def members(request):
    made = Members(getattr(request, "param", 3))
    yield made
    made.end()


def release(others, *, within: float = 2.0):
    """Who has not noticed by itself hears of a new world, which cuts its links; then everyone must be free."""
    deadline = time.monotonic() + within
    waiting = [one for one in others if one.heard(max(0.0, deadline - time.monotonic())) is None]
    for one in waiting:
        one.tell("abort")
    for one in waiting:
        answer = one.hear()
        assert answer["error"] in {"LinkBroken", "CollectiveFailed"}, answer
    return len(others) - len(waiting)


def go_on(members, others):
    """The others make a ring and a group of their own, which work."""
    for answer in members.told("close", others):
        assert answer["answer"], "the group did not end"
    members.link(others)
    members.told("meet", others)
    expected = len(others) * (len(others) + 1) // 2
    assert {a["answer"] for a in members.told("sum", others, count=1000)} == {expected}
    members.told("close", others)


@pytest.mark.parametrize("members", [2, 3, 5], indirect=True)
def test_a_sum_over_all_members(members):
    members.link()
    members.told("meet")
    size = len(members.all)
    for count in (1, 1000, 300_000):
        assert {a["answer"] for a in members.told("sum", count=count)} == {size * (size + 1) // 2}
    assert all(a["answer"] for a in members.told("close"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("members", [4], indirect=True)
def test_gone_before_the_first_collective(members, how):
    """A peer that exits, or is stopped, between the making of the group and its first use (gloo#520)."""
    members.link()
    members.told("meet")
    victim, *others = members.all
    victim.signal(how)
    for one in others:
        one.tell("sum", count=1000)
    noticed = release(others, within=1.0)
    assert noticed >= (2 if how == signal.SIGKILL else 0), "both neighbours see a death by themselves"
    go_on(members, others)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("seed", range(2))
def test_gone_in_the_middle_of_a_collective(members, how, seed):
    members.link()
    members.told("meet")
    rng = random.Random(seed)
    victim = members.all[seed]
    others = [one for one in members.all if one is not victim]
    for one in members.all:
        one.tell("sum", count=LARGE, times=1000)
    time.sleep(0.05 + 0.2 * rng.random())
    victim.signal(how)
    release(others, within=0.5)
    go_on(members, others)


def test_gone_while_the_group_is_made(members):
    """One never comes to the meeting: the token does not come back, and a new world frees the others."""
    members.link()
    _, *others = members.all
    for one in others:
        one.tell("meet")
    assert release(others, within=0.3) == 0
    go_on(members, others)


def test_frozen_between_its_address_and_its_connections(members):
    """gloo waits for connections that never come; the others are free at once, what they gave up goes by itself."""
    members.link()
    victim, *others = members.all
    victim.tell("meet_and_freeze")
    for one in others:
        one.tell("meet", connecting=1.0)
    release(others, within=1.0)  # who dialled the victim itself has its connection, and does not wait
    members.told("close", others, seconds=0.0)
    members.link(others)
    members.told("meet", others)
    assert {a["answer"] for a in members.told("sum", others, count=10)} == {3}
    members.told("close", others)
    deadline = time.monotonic() + 60
    while any(a["answer"] for a in members.told("closing", others)):
        assert time.monotonic() < deadline, "what was given up lingers"
        time.sleep(0.1)


def rebuild(members, times):
    seen = []
    for _ in range(times):
        members.link()
        members.told("meet")
        members.told("sum", count=20_000)
        assert all(a["answer"] for a in members.told("close"))
        seen.append([a["answer"] for a in members.told("residue")])
    return seen


def flat(seen, *, warm, megabytes):
    """The least of the last five is no more than that of five after the warm-up: what is just ending does not count."""
    for rank in range(len(seen[0])):
        rows = [row[rank] for row in seen]
        for what, more in (("descriptors", 0), ("threads", 0), ("megabytes", megabytes)):
            first, last = (min(row[what] for row in some) for some in (rows[warm : warm + 5], rows[-5:]))
            assert last <= first + more, (what, [row[what] for row in rows])


def test_twenty_rebuilds_leave_nothing(members):
    flat(rebuild(members, 20), warm=5, megabytes=8)


@pytest.mark.slow
def test_two_hundred_rebuilds_leave_nothing(members):
    flat(rebuild(members, 200), warm=20, megabytes=8)
